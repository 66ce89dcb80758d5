"""Scatters that cannot work on the sum they are part of, because they lie otherwise: their memory, against XLA's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from alpha_beta import AlphaBeta
from hand_graphs import Builder, costs_of
from search_programs import module_of, spec

from rhino.compile import compile_module
from rhino.ir.import_graph import import_graph
from rhino.ir.write_layouts import annotate
from rhino.machine import Cluster
from rhino.program import Graph
from rhino.program.memory import lifetimes
from rhino.sharding import Options, Solution, plan_sharding
from rhino.sharding.cuts import cut_at, row
from rhino.sharding.evaluate import predict
from rhino.sharding.kept import memory
from rhino.sharding.landing import landings
from rhino.sharding.program import AxisProgram

ROWS, CLASSES = 4096, 16384


def planned() -> tuple[Any, Graph, Solution]:
    """A classifier's gradient, whose classes are split over all of eight GPUs."""

    def gradient(w: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        return jax.grad(lambda w: optax.softmax_cross_entropy_with_integer_labels(x @ w, y).mean())(w)

    module = module_of(gradient, spec(8192, CLASSES), spec(ROWS, 8192), spec(ROWS, dtype=jnp.int32), donate=(0,))
    graph = import_graph(module)
    return module, graph, plan_sharding(graph, Cluster.load("dgx-h100:1"), Options(mesh=(8,)))


def scatters_whole(solution: Solution) -> Solution:
    """The plan with every scatter made whole on each device, and split after."""
    costs = solution.costs
    apart = {costs.quotient.klass[n.index] for n in costs.problem.nodes if n.kind == "op" and n.ops[0] in costs.apart}
    assert apart
    return replace(solution, states=tuple((0,) if k in apart else s for k, s in enumerate(solution.states)))


def test_a_found_plan_scatters_into_the_sum() -> None:
    _, graph, solution = planned()
    whole = scatters_whole(solution)
    assert not any(landings(solution.costs, t, solution.states) for t, _ in solution.costs.quotient.transfers)
    found, other = (predict(solution.costs, s.states, lifetimes(graph)) for s in (solution, whole))
    # Filled with zeros and read again at 3.35 TB/s; the scatter's own updates are next to nothing.
    bytes_s = 3.35e12 * Cluster.load("dgx-h100:1").efficiency.memory
    assert other.compute_s - found.compute_s == pytest.approx(2 * 4 * ROWS * CLASSES / bytes_s, rel=0.01)


def test_memory_of_a_scatter_made_whole_is_what_xla_takes(gpu_compiler: None) -> None:
    module, graph, solution = planned()
    whole = scatters_whole(solution)
    predicted = memory(solution.costs, whole.states, lifetimes(graph)).peak_bytes
    assert predicted > solution.predicted.memory.peak_bytes + 3 * ROWS * CLASSES
    annotate(module, graph, whole)
    measured = compile_module(str(module), "h100").memory_analysis().peak_bytes
    assert predicted == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize(("share", "whole"), [(1.0, True), (0.9, False)])
def test_a_limit_counts_what_is_written_apart(share: float, whole: bool) -> None:
    build = Builder()
    a, b = build.argument(64, 64), build.argument(64, 64)
    graph = build.finish(build.reduce(build.same("tanh", build.labelled(build.dot(a, b))), 1))
    costs = replace(costs_of(graph, AlphaBeta((4,), [0.0], [0.0]), [0.0] * len(graph.ops)), apart={})
    (scatter,) = (op.index for op in graph.ops if op.name == "stablehlo.scatter")
    costs = replace(costs, apart={scatter: 0.0})
    (k,) = (costs.quotient.klass[n.index] for n in costs.problem.nodes if n.ops == [scatter])
    states = [(0,) if c == k else (1,) for c in range(len(costs.quotient.counts))]
    life = lifetimes(graph)
    used = memory(costs, states, life)
    program = AxisProgram(costs, (0,), states, {})
    program.build()
    # All but the scatter in the state it has.
    for c, s in enumerate(states):
        if c != k:
            program.milp.row(1, 1, [(program.x[c][s], 1.0)])
    program.limit(*row(program, cut_at(costs, states, life, used.at, int(used.peak_bytes * share / 0.97) + 1)))
    program.milp.costs[program.x[k][0,]] -= 1.0
    found = program.solve(10.0)
    assert found is not None
    assert (found.states[k] == (0,)) is whole
