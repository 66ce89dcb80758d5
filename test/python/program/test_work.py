"""What kernels do besides moving bytes, as the search counts it: operations, exponentials of rows, additions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from search_programs import graph_of, spec

from rhino.program.traffic import Fusing, traffic
from rhino.program.work import Work, operations, scattered

GPU = Fusing(rows_fused=True, shared_kept=True, siblings_merged=True, products_fuse=True, worked=True)


def works(fn: Any, *given: Any) -> list[Work]:
    """Of each kernel, in program order."""
    found = traffic(graph_of(fn, *given), GPU).kernels
    return [found[index] for index in sorted(found)]


def test_operations_by_name() -> None:
    assert operations("add") == 0.6 and operations("add", integer=True) == 0.5
    assert operations("transpose") == operations("gather", integer=True) == 0.0
    # What is in no table is one operation.
    assert operations("maximum") == 1.0


def test_each_kernel_counts_what_it_makes_again() -> None:
    n = 1024
    (one,) = works(lambda x: jnp.tanh(x) + 1.0, spec(n))
    assert one == Work(8.0 * n, 15.6 * n)


def test_a_softmax_has_its_exponentials_for_both_sums() -> None:
    rows, n = 64, 512
    (found,) = works(lambda x: jax.nn.softmax(x, axis=-1), spec(rows, n))
    assert found.row_exponentials == 4.0 * rows * n
    assert found.nbytes == 8.0 * rows * n
    # Where sums have kernels of their own there are none.
    apart = traffic(graph_of(lambda x: jax.nn.softmax(x, axis=-1), spec(rows, n)), replace(GPU, rows_fused=False))
    assert not any(work.row_exponentials for work in apart.kernels.values())


@pytest.mark.parametrize("dtype, count", [(jnp.float32, 0.0), (jnp.bfloat16, 256.0 * 128)])
def test_additions_of_16_bits_wait_for_each_other(dtype: Any, count: float) -> None:
    def gradient(ids: jax.Array, updates: jax.Array) -> jax.Array:
        return jnp.zeros((4, 128), dtype).at[ids].add(updates)

    found = works(gradient, jax.ShapeDtypeStruct((256,), jnp.int32), jax.ShapeDtypeStruct((256, 128), dtype))
    scatter = max(found, key=lambda work: work.additions)
    assert (scatter.additions, scatter.clashes) == (count, 63.0 if count else 0.0)


def test_what_is_added_once_waits_for_nothing() -> None:
    assert scattered(100, 2, True, 1000) == (100.0, 0.0)
    assert scattered(100, 2, False, 10) == (0.0, 0.0)


def test_nothing_is_counted_where_no_device_tells_what_it_takes() -> None:
    assert not traffic(graph_of(jnp.tanh, spec(8)), replace(GPU, worked=False)).kernels
