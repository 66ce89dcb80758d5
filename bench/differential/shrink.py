"""Cuts a program that fails down to what still fails in the same way.

Owns the order of attempts. Asks a question of programs and knows nothing of what it means.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.differential.program import Program


def smallest(program: Program, fails: Callable[[Program], bool], attempts: int = 120) -> Program:
    """A part of the program for which `fails` still holds: one result if that can be, with as few operations as can be.

    Operations give way to arguments from the first on, so that what is left is the end of a chain. Deterministic, and
    `fails` is asked at most `attempts` times.
    """
    left = attempts

    def still(candidate: Program) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and fails(candidate)

    for output in program.outputs if len(program.outputs) > 1 else ():
        if still(part := program.only([output])):
            program = part
            break
    index = 0
    while index < len(program.ops) and left > 0:
        shorter = program.without(index)
        if shorter is not None and shorter != program and still(shorter):
            program = shorter  # what follows has moved to this place
        else:
            index += 1
    return program
