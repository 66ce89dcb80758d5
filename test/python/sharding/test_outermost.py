"""Weights and gradients that a product cannot have as the network sends them: turned around, in what is predicted."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_programs import graph_of, spec

from rhino.machine import Cluster
from rhino.machine.roofline import launch_s, memory_bytes_s
from rhino.program import Graph
from rhino.program.memory import lifetimes
from rhino.sharding import Options, plan_sharding
from rhino.sharding.descent import Setting, descend
from rhino.sharding.evaluate import predict
from rhino.sharding.outermost import turned_dims

CLUSTER = Cluster.load("dgx-h100:1")
ROWS, WIDTH, HEADS, SIZE = 1 << 17, 256, 8, 32


def product(shape: Sequence[int], summed: Sequence[int]) -> Graph:
    """A dot whose second operand has a shape, of which some dimensions are summed."""
    inner = [shape[d] for d in summed]

    def dot(a: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.dot_general(a, w, ((range(1, 1 + len(inner)), summed), ((), ())))

    return graph_of(dot, spec(ROWS, *inner), spec(*shape))


def turned(shape: Sequence[int], summed: Sequence[int]) -> list[int]:
    graph = product(shape, summed)
    (op,) = (op for op in graph.ops if op.name == "stablehlo.dot_general")
    return turned_dims(op, 1, graph.values[op.operands[1]].shape)


@pytest.mark.parametrize(
    ("shape", "summed", "dims"),
    [
        # As XLA compiles them for an H100, one dimension split and gathered at a time.
        ((1024, 2048), (0,), []),
        ((1024, 16, 128), (0,), [1, 2]),
        ((16, 128, 1024), (0, 1), [1]),
        ((16, 128, 1024), (2,), [1]),
        ((1024, 16, 128), (1, 2), [1, 2]),
        # What is of size one lies anywhere.
        ((1024, 1, 128), (0,), []),
        ((1, 16, 128, 1024), (1, 2), [2]),
    ],
)
def test_which_dimensions_cannot_lie_outermost(
    shape: tuple[int, ...], summed: tuple[int, ...], dims: list[int]
) -> None:
    assert turned(shape, summed) == dims


@settings(deadline=None)
@given(rank=st.integers(3, 5), data=st.data())
def test_one_that_can_leaves_what_is_summed_and_what_is_left_beside_each_other(rank: int, data: st.DataObject) -> None:
    shape = tuple(range(2, 2 + rank))
    summed = tuple(sorted(data.draw(st.sets(st.integers(0, rank - 1), min_size=1, max_size=rank - 1))))
    left = tuple(d for d in range(rank) if d not in summed)
    whole = {one + other for one, other in permutations((summed, left))}
    can = [d for d in range(rank) if (d, *(o for o in range(rank) if o != d)) in whole]
    assert [d for d in range(rank) if d not in turned(shape, summed)] == can


def test_products_of_batches_are_left_out() -> None:
    def dot(a: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.einsum("ebd,edf->ebf", a, w)

    graph = graph_of(dot, spec(4, 64, 32), spec(4, 32, 64))
    (op,) = (op for op in graph.ops if op.name == "stablehlo.dot_general")
    assert turned_dims(op, 1, (4, 32, 64)) == turned_dims(op, None, (4, 64, 64)) == []


def step(w: jax.Array, x: jax.Array) -> jax.Array:
    return w - jax.grad(lambda w: jnp.mean(jnp.tanh(jnp.einsum("bd,dhk->bhk", x, w)) ** 2))(w)


def test_a_weight_that_is_gathered_so_takes_what_it_moves() -> None:
    """Rows are divided; the weight is whole, or split along each of its dimensions, and its gradient with it."""
    graph = graph_of(step, spec(WIDTH, HEADS, SIZE), spec(ROWS, WIDTH), donate=(0,))
    solution = plan_sharding(graph, CLUSTER, Options(mesh=(8,)))
    costs, problem = solution.costs, solution.problem
    quotient = costs.quotient
    node = problem.node_of[graph.arguments[0].value]
    once_s = 2 * 4 * WIDTH * HEADS * SIZE / memory_bytes_s(CLUSTER) + launch_s(CLUSTER)
    found = {}
    for state in range(problem.nodes[node].states):
        states = [(state,) if k == quotient.klass[node] else s for k, s in enumerate(solution.states)]
        of_nodes = sum(count * costs.node_parts(k, states[k])[0] for k, count in enumerate(quotient.counts))
        found[state] = (predict(costs, states, lifetimes(graph)).compute_s - of_nodes) / once_s
    # The product has its gradient as [heads, size, width]: along heads that is sent as it lies, along sizes it is not.
    assert found == pytest.approx({0: 0.0, 1: 0.0, 2: 1.0, 3: 2.0}, abs=1e-6)


def test_the_search_counts_what_is_predicted() -> None:
    """Of the program that is solved, on one axis: the weight is split along heads, along sizes, or as is fastest."""
    graph = graph_of(step, spec(WIDTH, HEADS, SIZE), spec(ROWS, WIDTH), donate=(0,))
    costs = plan_sharding(graph, CLUSTER, Options(mesh=(8,))).costs
    weight = costs.quotient.klass[costs.problem.node_of[graph.arguments[0].value]]
    for state in (2, 3, None):
        found = descend(Setting(costs, {} if state is None else {weight: (frozenset({state}),)}), [0])
        assert found is not None
        assert state is None or found.states[weight] == (state,)
        assert found.objective == pytest.approx(predict(costs, found.states, lifetimes(graph)).step_time_s, rel=1e-6)
