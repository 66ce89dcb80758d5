"""Operands that products in loops read a part of: the copies, in what is predicted."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from search_programs import graph_of, spec

from rhino.machine import Cluster
from rhino.machine.roofline import launch_s, memory_bytes_s
from rhino.program import Graph
from rhino.program.memory import lifetimes
from rhino.sharding import Options, Solution, plan_sharding
from rhino.sharding.costs import States
from rhino.sharding.evaluate import Prediction, predict

TRIPS, ROWS, WIDTH = 64, 512, 4096
CLUSTER = Cluster.load("dgx-a100:1")


def recurrent(fused: bool) -> Graph:
    """A product with one weight in each trip of a loop; `fused` with what a fusion makes of it."""

    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        def trip(h: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jnp.tanh(h @ (w * jnp.abs(w) if fused else w)), None

        return jax.lax.scan(trip, x, None, TRIPS)[0]

    return graph_of(step, spec(WIDTH, WIDTH, dtype=jnp.bfloat16), spec(ROWS, WIDTH, dtype=jnp.bfloat16))


def product_alone(solution: Solution) -> list[States]:
    """All is whole, but for the product: its columns are split."""
    problem, quotient = solution.problem, solution.costs.quotient
    (dot,) = (n for n in problem.nodes if n.kind == "op")
    (columns,) = (s for s, f in enumerate(dot.factors, 1) if f == problem.graph.ops[dot.ops[0]].rule.results[0][1][0])
    return [(columns,) if k == quotient.klass[dot.index] else (0,) for k in range(len(quotient.counts))]


def of_nodes(solution: Solution, states: list[States]) -> float:
    quotient = solution.costs.quotient
    return sum(count * solution.costs.node_parts(k, states[k])[0] for k, count in enumerate(quotient.counts))


@pytest.mark.parametrize("fused", [False, True])
def test_each_trip_copies_the_part_of_a_weight_that_it_reads(fused: bool) -> None:
    graph = recurrent(fused)
    solution = plan_sharding(graph, CLUSTER, Options(mesh=(8,)))
    states = product_alone(solution)
    found: Prediction = predict(solution.costs, states, lifetimes(graph))
    copied_s = TRIPS * (2 * 2 * WIDTH * WIDTH / 8 / memory_bytes_s(CLUSTER) + launch_s(CLUSTER))
    # A fusion makes the part alone.
    assert found.compute_s - of_nodes(solution, states) == pytest.approx(0.0 if fused else copied_s)
