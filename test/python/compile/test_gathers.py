"""Rows of a table that is split both ways, divided further than their indices were: XLA cuts them wrongly by itself."""

from __future__ import annotations

import numpy as np
import pytest
from annotated_modules import constraint, has, module, on_op

from rhino.compile import compile_module
from rhino.compile.module import parse
from rhino.compile.prepare import prepare

MESH = '"x"=2, "y"=2, "z"=2'
TABLE, AT, ROWS = "tensor<16x16xf32>", "tensor<8x4x1xi32>", "tensor<8x4x16xf32>"


def step(table: tuple[str, str], wanted: tuple[str, str, str]) -> str:
    """Rows of a table in the middle of a step; the indices are split along their first dimension."""
    body = constraint("u", "t", TABLE, *table) + (
        '%r = "stablehlo.gather"(%u, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], '
        "collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, "
        f"slice_sizes = array<i64: 1, 16>}}> {on_op(*wanted)} : ({TABLE}, {AT}) -> {ROWS}\n"
    )
    arguments = [("t", TABLE, has("", "")), ("i", AT, has("y", "", ""))]
    return module(arguments, [(ROWS, has(*wanted))], f"{body}return %r : {ROWS}", MESH)


def constraints(text: str) -> list[str]:
    """The constraints on rows in a program for XLA."""
    lines = str(parse(prepare(text)[1])).splitlines()
    return [line for line in lines if "sdy.sharding_constraint" in line and ROWS in line]


@pytest.mark.parametrize("wanted", [("y,x", "", "z"), ("x,y", "", "z"), ("y", "x", "z")])
def test_rows_are_summed_before_they_are_divided(wanted: tuple[str, str, str]) -> None:
    text = step(("x", "z"), wanted)
    (summed, _) = constraints(text)
    assert '[{"y"}, {}, {"z"}]' in summed
    table = np.arange(256, dtype=np.float32).reshape(16, 16)
    at = np.random.default_rng(0).integers(0, 16, (8, 4, 1)).astype(np.int32)
    np.testing.assert_array_equal(compile_module(text, "cpu")(table, at)[0], table[at[..., 0]])


@pytest.mark.parametrize(
    ("table", "wanted"),
    [
        (("x", "z"), ("y", "", "z")),  # divided no further
        (("x", ""), ("y,x", "", "")),  # rows are whole
        (("", "z"), ("y,x", "", "z")),  # nothing is summed
    ],
)
def test_others_are_left_to_xla(table: tuple[str, str], wanted: tuple[str, str, str]) -> None:
    assert len(constraints(step(table, wanted))) == 1


@pytest.mark.slow
def test_what_xla_would_refuse_is_compiled_for_gpus() -> None:
    compiled = compile_module(step(("x", "z"), ("y,x", "", "z")), "h100")
    assert {found.kind for found in compiled.collectives()} >= {"reduce-scatter"}
