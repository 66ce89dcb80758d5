"""Zeros that a scatter adds to are made by whoever scatters, as much of them as it has of the table."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from search_programs import graph_of, spec

from rhino.machine import Cluster
from rhino.program.memory import lifetimes
from rhino.sharding import Options, plan_sharding
from rhino.sharding.evaluate import predict

ROWS, WIDTH, TOKENS = 1 << 20, 64, 128


def update(table: jax.Array, moments: jax.Array, ids: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Adagrad of a table of which few rows are read."""
    gradient = jax.grad(lambda table: (table[ids] ** 2).sum())(table)
    moments = moments + gradient**2
    return table - 0.1 * gradient * jax.lax.rsqrt(moments + 1e-6), moments


@pytest.mark.parametrize("split", [True, False])
def test_each_device_fills_what_it_adds_to(split: bool) -> None:
    graph = graph_of(update, *[spec(ROWS, WIDTH)] * 2, spec(TOKENS, dtype=jnp.int32), donate=(0, 1))
    cluster = Cluster.load("dgx-h100:1")
    solution = plan_sharding(graph, cluster, Options(mesh=(8,)))
    states = solution.states if split else tuple((0,) for _ in solution.states)
    with_fills = predict(solution.costs, states, lifetimes(graph))
    without = predict(replace(solution.costs, filled={}, parts={}), states, lifetimes(graph))
    own = ROWS * WIDTH * 4 / (8 if split else 1)
    launch_s = cluster.device.kernels.launch_s if cluster.device.kernels else 0.0
    bytes_s = cluster.device.memory_bandwidth_bytes_s * cluster.efficiency.memory
    assert with_fills.compute_s - without.compute_s == pytest.approx(own / bytes_s + launch_s, rel=1e-3)
