"""Which computing, and which transfers, are in loops over layers that sum gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from search_programs import graph_of, spec

from rhino.machine import Cluster
from rhino.program import Graph
from rhino.program.memory import lifetimes
from rhino.program.operations import CONTRACTIONS
from rhino.sharding import Options, plan_sharding
from rhino.sharding.cones import build_problem
from rhino.sharding.descent import Setting, jointly, start_from_nothing
from rhino.sharding.evaluate import predict
from rhino.sharding.leaving import late_seconds
from rhino.sharding.overlap import WON
from rhino.sharding.paid import paid
from rhino.sharding.symmetry import tie_repeats
from rhino.sharding.time_model import ProgramTimes, TimeModel

LAYERS = 6
Weights = tuple[jax.Array, jax.Array]


def layer(h: jax.Array, w: Weights) -> tuple[jax.Array, None]:
    return jnp.tanh(h @ w[0]) @ w[1], None


def scanned(weights: Weights, x: jax.Array) -> jax.Array:
    return (jax.lax.scan(layer, x, weights)[0] ** 2).mean()


def telling(weights: Weights, x: jax.Array) -> jax.Array:
    """A layer of which calls a function that is given nothing, and gives nothing."""

    def told(h: jax.Array, w: Weights) -> tuple[jax.Array, None]:
        jax.debug.print("a layer")
        return layer(h, w)

    return (jax.lax.scan(told, x, weights)[0] ** 2).mean()


def unrolled(weights: Weights, x: jax.Array) -> jax.Array:
    for i in range(LAYERS):
        x, _ = layer(x, (weights[0][i], weights[1][i]))
    return (x**2).mean()


def training(gradient: Callable[[Weights, jax.Array], Weights]) -> Callable[[Weights, jax.Array], Weights]:
    return lambda weights, x: jax.tree.map(lambda w, g: w - 1e-3 * g, weights, gradient(weights, x))


def added_up(weights: Weights, x: jax.Array) -> Weights:
    """Gradients of four parts of the batch, layers unrolled."""

    def part(total: Weights, x: jax.Array) -> tuple[Weights, None]:
        return jax.tree.map(jnp.add, total, jax.grad(unrolled)(weights, x)), None

    return jax.lax.scan(part, jax.tree.map(jnp.zeros_like, weights), x.reshape(4, -1, x.shape[1]))[0]


def graph_with(gradient: Callable[[Weights, jax.Array], Weights], rows: int = 512, width: int = 256) -> Graph:
    weights = spec(LAYERS, width, 4 * width), spec(LAYERS, 4 * width, width)
    return graph_of(training(gradient), weights, spec(rows, width), donate=(0,))


@pytest.mark.parametrize("loss", [scanned, telling])
def test_a_loop_over_layers_backwards(loss: Callable[[Weights, jax.Array], jax.Array]) -> None:
    graph = graph_with(jax.grad(loss))
    problem = build_problem(graph)
    quotient = tie_repeats(problem)
    found = ProgramTimes.of(problem, quotient, TimeModel(Cluster.load("dgx-h100:2"))).hiding
    forward, backward = (op for op in graph.ops if op.name == "stablehlo.while")
    products = [op for op in graph.ops if op.name in CONTRACTIONS]
    assert {op.parent for op in products} == {forward.index, backward.index}
    windows = {-1: 0, backward.index: 1, forward.index: 2}
    for n, node in enumerate(problem.nodes):
        if node.kind == "op":
            assert found.shares_of(quotient.klass[n])[windows[graph.ops[node.ops[0]].parent]] == 1
    assert all(sum(shares) == pytest.approx(1) for shares in found.shares.values())
    for transfer, _ in quotient.transfers:
        assert found.window_of(transfer.index) == windows[graph.ops[transfer.op].parent]
    # Of six trips one sends with nothing beside it.
    assert [window.won for window in found.windows] == pytest.approx([WON, 1 - 1 / LAYERS, 1 - 1 / LAYERS])
    assert found.most == pytest.approx(max(window.share * window.won for window in found.windows))


@pytest.mark.parametrize("gradient", [jax.grad(unrolled), added_up, lambda weights, x: weights])
def test_no_other_step_has_such_a_loop(gradient: Callable[[Weights, jax.Array], Weights]) -> None:
    graph = graph_with(gradient)
    problem = build_problem(graph)
    found = ProgramTimes.of(problem, tie_repeats(problem), TimeModel(Cluster.load("dgx-h100:2"))).hiding
    assert not found.within
    assert not found.shares
    assert found.windows[0].won == WON
    assert found.most == found.windows[0].share * WON


def test_a_step_hides_no_more_than_its_loop_backwards_computes() -> None:
    """Data parallel over a slow network: all that is sent is sums of gradients, more than there is to hide it under."""
    graph = graph_with(jax.grad(scanned), 8192, 2048)
    given: Any = Options(mesh=(16,))
    found = plan_sharding(graph, Cluster.load("p3.16xlarge:2"), given)
    costs, counts = found.costs, found.costs.quotient.counts
    seconds = [count * costs.node_parts(k, found.states[k])[0] for k, count in enumerate(counts)]
    inside_s = sum(costs.hiding.shares_of(k)[1] * s for k, s in enumerate(seconds))
    assert 0 < inside_s < 0.75 * sum(seconds)
    share, won = costs.hiding.windows[1]
    assert won == pytest.approx(1 - 1 / LAYERS)
    assert found.predicted.hidden_s == pytest.approx(won * share * inside_s, rel=0.05)


def test_what_is_summed_behind_a_loop_over_parts_of_the_batch_is_waited_for() -> None:
    def step(weights: Weights, x: jax.Array) -> Weights:
        def part(total: Weights, x: jax.Array) -> tuple[Weights, None]:
            gradient = jax.grad(lambda w: (layer(x, w)[0] ** 2).mean())(weights)
            return jax.tree.map(jnp.add, total, gradient), None

        total, _ = jax.lax.scan(part, jax.tree.map(jnp.zeros_like, weights), x)
        return jax.tree.map(lambda w, g: w - 1e-3 * g, weights, total)

    graph = graph_of(step, (spec(256, 1024), spec(1024, 256)), spec(8, 8192, 256), donate=(0,))
    given: Any = Options(mesh=(16,))
    found = plan_sharding(graph, Cluster.load("p3.16xlarge:2"), given)
    costs = found.costs
    late_s = sum(
        count * late_seconds(costs, transfer, source, target, steps)
        for transfer, count in costs.quotient.transfers
        for _, steps, source, target in paid(costs, transfer, found.states)
    )
    sent_s = found.predicted.comm_s + found.predicted.hidden_s
    assert 0.5 * sent_s < late_s <= found.predicted.comm_s
    # So says the program that is solved, too.
    setting = Setting(costs, {})
    first = start_from_nothing(setting)
    assert first is not None
    plan = jointly(setting, first)
    assert predict(costs, plan.states, lifetimes(graph)).step_time_s == pytest.approx(plan.objective, rel=1e-3)
