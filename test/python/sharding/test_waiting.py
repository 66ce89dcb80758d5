"""Parts of gradients that wait, whole, for their reduction: which wait for each other, against the memory XLA takes."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jaxlib.mlir import ir
from search_programs import spec
from test_kept import planned, ratio

from rhino.program import Graph
from rhino.program.memory import lifetimes
from rhino.sharding import Solution
from rhino.sharding.kept import memory
from rhino.sharding.waiting import waiting

MIB = 2**20


def accumulated(layers: int, width: int, rows: int) -> tuple[ir.Module, Graph, Solution]:
    """Gradients of whole weights, 8 devices having rows each, scattered into sums that are kept in parts."""

    def step(sums: list[jax.Array], weights: list[jax.Array], x: jax.Array) -> list[jax.Array]:
        def loss(weights: list[jax.Array]) -> jax.Array:
            y = x
            for w in weights:
                y = jnp.tanh(y @ w)
            return jnp.mean(y**2)

        return [0.9 * s + g for s, g in zip(sums, jax.grad(loss)(weights), strict=True)]

    weights = [spec(width, width)] * layers
    pins = {i: (("x",), ()) if i < layers else ((), ()) for i in range(2 * layers)} | {2 * layers: (("x",), ())}
    return planned(step, weights, weights, spec(rows, width), pins=pins, donate=(0,))


def waits(graph: Graph, solution: Solution) -> list[tuple[int, int]]:
    """(made, reduced) of all gradients, in program order."""
    costs = solution.costs
    sums = [t for t in costs.problem.transfers if t.kind == "define" and costs.quotient.tied[t.index] in costs.combines]
    return sorted(waiting(costs, solution.states, lifetimes(graph), sums).values())


def test_gradients_wait_for_those_of_their_collective() -> None:
    """Results of 8 MiB, of 64: two fill a collective."""
    _, graph, solution = accumulated(6, 4096, 16384)
    assert solution.predicted.collectives == {"reduce-scatter": 6}
    made = [born for born, _ in waits(graph, solution)]
    pairs = list(zip(made[::2], made[1::2], strict=True))
    assert waits(graph, solution) == [w for a, b in pairs for w in ((a, b), (b, b + 1))]


def test_without_a_threshold_all_wait_for_the_last() -> None:
    _, graph, solution = accumulated(6, 4096, 16384)
    solution.costs.back_end = replace(solution.costs.back_end, options={})
    made = [born for born, _ in waits(graph, solution)]
    assert waits(graph, solution) == [(born, max(born + 1, made[-1])) for born in made]


@pytest.mark.parametrize("layers, rows, least", [(6, 16384, 1.15), (8, 8192, 1.25)])
def test_memory_is_that_of_what_waits(layers: int, rows: int, least: float, gpu_compiler: None) -> None:
    """Were all to wait for the last, `least` of XLA's peak would be predicted."""
    module, graph, solution = accumulated(layers, 4096, rows)
    found = ratio(module, graph, solution)
    assert 0.93 < found < 1.03
    costs, life = solution.costs, lifetimes(graph)
    late = replace(costs, back_end=replace(costs.back_end, options={}))
    one = memory(costs, solution.states, life).peak_bytes
    assert memory(late, solution.states, life).peak_bytes > least / found * one
