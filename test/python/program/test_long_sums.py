"""Which reductions are two kernels, and into how many parts they still are."""

from __future__ import annotations

import jax.numpy as jnp
import pytest
from search_programs import graph_of, spec

from rhino.program.long_sums import is_long


@pytest.mark.parametrize(
    ("shape", "over", "most"),
    [
        ((4096, 256), (0,), 0),
        ((4097, 256), (0,), 1),
        ((16, 32, 32, 64), (0, 1, 2), 3),  # not divided into 4
        ((256, 16384), (1,), 0),
        ((256, 16385), (1,), 1),
        ((128, 128, 16), (0, 1, 2), 15),
        ((8, 5000, 100), (1,), 1),
        ((8192, 16, 1), (0,), 1),
    ],
)
def test_how_long(shape: tuple[int, ...], over: tuple[int, ...], most: int) -> None:
    graph = graph_of(lambda x: jnp.sum(x, axis=over), spec(*shape))
    (op,) = (op for op in graph.ops if op.name == "stablehlo.reduce")
    parts = [parts for parts in range(1, 65) if is_long(graph, op, parts)]
    assert parts == list(range(1, most + 1))
    assert not any(is_long(graph, o) for o in graph.ops if o is not op)
