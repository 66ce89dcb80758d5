"""Sums over the batch that layers wait for: which they are, and how little of computing they leave to others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from search_programs import module_of, spec

from rhino.ir.import_graph import import_graph
from rhino.machine import Cluster
from rhino.program import Graph
from rhino.sharding.combining import combinable, made_together
from rhino.sharding.cones import build_problem
from rhino.sharding.costs import Costs
from rhino.sharding.interrupted import batch_sums, uninterrupted
from rhino.sharding.overlap import WINDOW, stored_transfers
from rhino.sharding.symmetry import tie_repeats
from rhino.sharding.time_model import ProgramTimes, TimeModel
from rhino.xla import back_end


def over_batch(h: jax.Array) -> jax.Array:
    mean, squares = h.mean(0), (h * h).mean(0)
    return (h - mean) * jax.lax.rsqrt(squares - mean**2 + 1e-3)


def over_features(h: jax.Array) -> jax.Array:
    return over_batch(h.T).T


def training(norm: Callable[[jax.Array], jax.Array], layers: int, width: int = 64) -> Graph:
    """A perceptron with a normalisation in each layer, and plain gradient descent."""

    def step(weights: list[jax.Array], x: jax.Array) -> Any:
        def loss(weights: list[jax.Array]) -> jax.Array:
            h = x
            for w in weights:
                h = jnp.tanh(norm(h @ w))
            return (h**2).mean()

        value, gradients = jax.value_and_grad(loss)(weights)
        return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], value

    return import_graph(module_of(step, [spec(width, width)] * layers, spec(256, width), donate=(0,), roles=True))


def share(graph: Graph) -> float:
    problem = build_problem(graph)
    quotient = tie_repeats(problem)
    stored = stored_transfers(problem, quotient)
    combines = made_together(problem, quotient, stored) | combinable(problem, quotient, stored)
    return uninterrupted(problem, quotient, combines, stored, back_end("h100"))


def test_sums_over_the_batch_are_told_from_others() -> None:
    # Forward two in a layer, one in the loss; backward the sums of gradients of both, besides.
    assert len(batch_sums(training(lambda h: h, 3))) == 1
    assert len(batch_sums(training(over_features, 3))) == 1
    assert len(batch_sums(training(over_batch, 3))) >= 1 + 3 * 4


def test_they_are_followed_into_loops() -> None:
    def step(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda h, w: (over_batch(h @ w), None), x, weights)[0]

    graph = import_graph(module_of(step, spec(4, 16, 16), spec(64, 16), roles=True))
    assert len(batch_sums(graph)) == 2
    assert all(graph.ops[o].trips == 4 for o in batch_sums(graph))


@pytest.mark.parametrize("layers", [4, 8])
def test_the_more_of_them_the_less_runs_beside_computing(layers: int) -> None:
    # Gradients and weights are few collectives; each can be between two sums.
    few, many = share(training(over_batch, layers)), share(training(over_batch, 4 * layers))
    assert many < WINDOW
    assert many == pytest.approx(few / 4, rel=0.25)
    assert share(training(over_features, 4 * layers)) >= WINDOW


def test_the_search_goes_by_it() -> None:
    for norm, layers in ((over_features, 16), (over_batch, 16)):
        graph = training(norm, layers)
        problem = build_problem(graph)
        times = ProgramTimes.of(problem, tie_repeats(problem), TimeModel(Cluster.load("dgx-h100:1")))
        assert Costs.on(times, (8,)).hiding.windows[0].share == min(WINDOW, share(graph))
