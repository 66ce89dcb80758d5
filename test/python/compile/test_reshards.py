"""A value that one reader has with an axis on another dimension is sent there, though a product reads it as it is."""

from __future__ import annotations

import numpy as np
from annotated_modules import BYTES, F32, constraint, dot, has, module, on_op

from rhino.compile import compile_module
from rhino.compile.module import parse
from rhino.compile.prepare import prepare

ARGUMENTS = [("a", F32, has("x", "")), ("w", F32, has("", "y"))]
DOT = (F32, F32, F32)
MOVED = constraint("m", "w", F32, "y", "")
OTHER = constraint("n", "p", F32, "x", "") + dot("q", "n", "m", DOT, "[1] x [1]", on_op("x", "y"))


def constraints(body: str) -> int:
    """How many constraints a program for XLA has."""
    return str(parse(prepare(body)[1])).count("sdy.sharding_constraint")


def step(first: str) -> str:
    """What reads %w as it is, or another value, and then with its axis on the other dimension."""
    body = dot("p", "a", first, DOT, attrs=on_op("x", "y")) + MOVED + OTHER
    return module([*ARGUMENTS, ("v", F32, has("", "y"))], [(F32, has("x", "y"))], f"{body}return %q : {F32}")


def test_the_axis_is_moved_and_nothing_gathered_for_that() -> None:
    text = step("w")
    compiled = compile_module(text, "cpu")
    sent = {found.kind: found.bytes for found in compiled.collectives()}
    # A device has 64 x 16, and sends all but its part; the other operand is gathered over the same axis.
    assert sent == {"all-to-all": BYTES // 4 * 3 // 4, "all-gather": BYTES // 2 * 3 // 4}
    a, w = np.random.default_rng(0).normal(size=(2, 64, 64)).astype(np.float32)
    np.testing.assert_allclose(compiled(a, w, w)[0], a @ w @ w.T, rtol=1e-3, atol=1e-3)


def test_what_nothing_else_reads_is_its_own_already() -> None:
    assert constraints(step("v")) + 1 == constraints(step("w"))
