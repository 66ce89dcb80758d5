"""Which collectives of activations' gradients products of parameters' gradients hide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from search_programs import graph_of, spec

from rhino.machine import Cluster
from rhino.program import Graph
from rhino.program.memory import lifetimes
from rhino.sharding import Options, plan_sharding
from rhino.sharding.cones import build_problem
from rhino.sharding.evaluate import predict
from rhino.sharding.overlap import WON, beside_transfers, hideable_transfers
from rhino.sharding.symmetry import tie_repeats

GPUS = Cluster.load("dgx-h100:1")
BATCH, WIDTH, LAYERS = 48, 32, 3


def one_by_one(weights: jax.Array, x: jax.Array) -> jax.Array:
    for weight in weights:
        x = jnp.tanh(x @ weight)
    return x


def scanned(weights: jax.Array, x: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda x, weight: (jnp.tanh(x @ weight), None), x, weights)[0]


def recomputed(weights: jax.Array, x: jax.Array) -> jax.Array:
    return jax.lax.scan(jax.checkpoint(lambda x, weight: (jnp.tanh(x @ weight), None)), x, weights)[0]


def training(layers: Callable[[Any, Any], jax.Array], answers: bool = True) -> Graph:
    """A step that returns its loss, or its weights alone."""

    def step(weights: Any, x: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda w: (layers(w, x) ** 2).mean())(weights)
        after = jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradient)
        return (after, loss) if answers else after

    weights: Any = [spec(WIDTH, WIDTH)] * LAYERS if layers is one_by_one else spec(LAYERS, WIDTH, WIDTH)
    return graph_of(step, weights, spec(BATCH, WIDTH), donate=(0,))


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize(("layers", "count"), [(one_by_one, LAYERS - 1), (scanned, 1), (recomputed, 1)])
def test_gradients_of_what_layers_read_are_summed_beside_those_of_weights(
    layers: Callable[[Any, Any], jax.Array], count: int, answers: bool
) -> None:
    """Nothing else is: no sum of the forward pass, computed once or again, whose product another one reads with."""
    graph = training(layers, answers)
    problem = build_problem(graph)
    quotient = tie_repeats(problem)
    found = beside_transfers(problem, quotient, GPUS)
    values = {t.value for t in problem.transfers if quotient.tied[t.index] in found}
    assert len(values) == count
    tanhs = [op.index for op in graph.ops if op.name == "stablehlo.tanh"]
    for v in values:
        product = graph.ops[graph.values[v].producer]
        assert product.name == "stablehlo.dot_general"
        # Behind the forward pass, computed again or not, what is made is as large as what the layer reads.
        assert product.index > max(tanhs) and graph.values[v].shape == (BATCH, WIDTH)
    assert not found & hideable_transfers(problem, quotient, GPUS)
    assert not beside_transfers(problem, quotient, Cluster.load("cpu:1"))


def test_nothing_is_left_to_hide_the_last_gradients_sum() -> None:
    graph = training(one_by_one)
    problem = build_problem(graph)
    quotient = tie_repeats(problem)
    hideable = hideable_transfers(problem, quotient, GPUS)
    sums = [t for t in problem.transfers if t.kind == "define" and graph.values[t.value].shape == (WIDTH, WIDTH)]
    assert [quotient.tied[t.index] in hideable for t in sorted(sums, key=lambda t: t.op)] == [True, True, False]


def test_a_step_takes_less_by_the_share_that_is_won() -> None:
    """Weights split by what is summed forward, so that a layer of two sums what it reads' gradient backward."""

    def layers(w: Any, x: Any) -> jax.Array:
        for up, down in w:
            x = jnp.tanh(jnp.tanh(x @ up) @ down)
        return x

    def step(weights: Any, x: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda w: (layers(w, x) ** 2).mean())(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradient), loss

    weights = [(spec(4096, 16384), spec(16384, 4096))] * 3
    graph = graph_of(step, weights, spec(64, 4096), donate=(0,))
    found = plan_sharding(graph, GPUS, Options(mesh=(8,)))
    apart = predict(
        replace(found.costs, hideable=found.costs.hideable - found.costs.beside), found.states, lifetimes(graph)
    )
    both = found.predicted
    assert found.costs.beside and both.hidden_s > apart.hidden_s
    assert both.step_time_s == pytest.approx(apart.step_time_s - (both.hidden_s - apart.hidden_s))
    assert both.hidden_s <= WON * (both.comm_s + both.hidden_s)
