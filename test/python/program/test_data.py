"""The graph's data model: sizes of element types, sizes of values, users."""

from __future__ import annotations

import pytest
from hand_graphs import Builder

from rhino.program import Value, dtype_bytes


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("f32", 4), ("bf16", 2), ("f64", 8), ("i1", 1), ("i8", 1), ("ui32", 4), ("i4", 0.5), ("complex<f32>", 8),
        ("f8E4M3FN", 1), ("f8E5M2", 1), ("f4E2M1FN", 0.5), ("f6E3M2FN", 0.75), ("!stablehlo.token", 0),
    ],
)  # fmt: skip
def test_bytes_of_element_types(dtype: str, expected: float) -> None:
    assert dtype_bytes(dtype) == expected


def test_bytes_of_values() -> None:
    assert Value(0, (3, 5), "bf16", -1).nbytes == 30
    assert Value(0, (), "f32", -1).nbytes == 4
    assert Value(0, (3, 0), "f32", -1).nbytes == 0
    # Halves of bytes are rounded down over the whole tensor, not per element.
    assert Value(0, (3, 5), "i4", -1).nbytes == 7


def test_users_are_in_program_order_and_listed_once() -> None:
    build = Builder()
    x = build.argument(4, 4)
    square = build.same("multiply", x, x)
    last = build.same("add", square, x)
    graph = build.finish(last)
    assert graph.users() == [[0, 1], [1], []]
