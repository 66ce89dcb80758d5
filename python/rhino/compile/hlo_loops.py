"""Reads how often an HLO `while` runs its body.

Owns: `trip_count`. Must not know: jax, MLIR, collectives.
"""

from __future__ import annotations

import re

from rhino.compile.hlo import Computation, HloModule, Instruction, called_computations


def trip_count(module: HloModule, caller: Computation, loop: Instruction) -> int | None:
    """How often a `while` runs its body: what XLA wrote down, else what its counter says; None if neither tells."""
    if (known := re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.raw_attributes)) is not None:
        return int(known.group(1))
    return _counted_trips(module, caller, loop)


def _counted_trips(module: HloModule, caller: Computation, loop: Instruction) -> int | None:
    """The trips of `for (i = start; i < end; i += step)`, the form jax's loops have."""
    called = called_computations(loop)
    condition, body = module.computations[called["condition"][0]], module.computations[called["body"][0]]
    compare = _through_fusion(module, condition, condition.instructions[condition.root])
    if compare is None or compare[0].opcode != "compare" or (direction := _direction(compare[0])) is None:
        return None
    left, right = compare[1]
    index, end = tuple_index(left), _constant(right)
    start = _constant(_element(caller, loop.operands[0], index)) if index is not None else None
    step = _step(body, index) if index is not None else None
    if start is None or end is None or step is None or step <= 0:
        return None
    span = end - start + (1 if direction == "LE" else 0)
    return max(0, -(-span // step))


def _through_fusion(
    module: HloModule, computation: Computation, root: Instruction
) -> tuple[Instruction, list[Instruction | None]] | None:
    """A condition's comparison and what it compares, looking into the fusion that may wrap it."""
    if root.opcode != "fusion":
        return root, [computation.instructions.get(name) for name in root.operands[:2]]
    inner = module.computations[called_computations(root)["calls"][0]]
    compare = inner.instructions[inner.root]
    sides: list[Instruction | None] = []
    for name in compare.operands[:2]:
        side = inner.instructions[name]
        if side.opcode == "parameter":
            side = computation.instructions[root.operands[int(side.literal)]]
        sides.append(side)
    return compare, sides


def _direction(compare: Instruction) -> str | None:
    match = re.search(r"direction=(LT|LE)", compare.attributes)
    return match.group(1) if match else None


def tuple_index(instruction: Instruction | None) -> int | None:
    """Which element of a tuple an instruction takes; None if it does not."""
    if instruction is None or instruction.opcode != "get-tuple-element":
        return None
    match = re.search(r"\bindex=(\d+)", instruction.attributes)
    return int(match.group(1)) if match else None


def _element(computation: Computation, tuple_name: str, index: int) -> Instruction | None:
    made = computation.instructions.get(tuple_name)
    if made is None or made.opcode != "tuple":
        return None
    element = computation.instructions.get(made.operands[index])
    while element is not None and element.opcode in ("copy", "bitcast", "convert"):
        element = computation.instructions.get(element.operands[0])
    return element


def _constant(instruction: Instruction | None) -> int | None:
    if instruction is None or instruction.opcode != "constant":
        return None
    return int(instruction.literal) if re.fullmatch(r"-?\d+", instruction.literal) else None


def _step(body: Computation, index: int) -> int | None:
    add = _element(body, body.root, index)
    if add is None or add.opcode != "add":
        return None
    sides = [body.instructions[name] for name in add.operands]
    if not any(tuple_index(side) == index for side in sides):
        return None
    return next((value for side in sides if (value := _constant(side)) is not None), None)
