"""A gradient that is wanted in parts, of a product that an axis does not divide: XLA makes the parts alone, and that
must not divide what the product reads, which others read whole.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from search_programs import compiled, least_sent, module_of, spec

from rhino.ir.import_graph import import_graph
from rhino.ir.read_layouts import read_layouts
from rhino.program import Graph
from rhino.sharding.cones import build_problem
from rhino.sharding.replay import replay


def step(weights: list[jax.Array], x: jax.Array, y: jax.Array) -> Any:
    def loss(weights: list[jax.Array]) -> jax.Array:
        h = x
        for w in weights:
            h = jnp.tanh(h @ w)
        return ((h - y) ** 2).mean()

    value, gradients = jax.value_and_grad(loss)(weights)
    return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], value


def kept_apart(graph: Graph) -> None:
    """Data are split over one axis, weights over the other."""
    for argument in graph.arguments:
        data = argument.name in ("x", "y")
        graph.pins[argument.value] = (argument.name, (("x",), ()) if data else ((), ("y",)))


@pytest.mark.parametrize("mesh", [(2, 4), (4, 2), (2, 2)])
@pytest.mark.parametrize("batch", [64, 512])
def test_xla_sends_what_was_predicted(mesh: tuple[int, int], batch: int) -> None:
    module = module_of(step, [spec(64, 64)] * 3, spec(batch, 64), spec(batch, 64), donate=(0,))
    graph = import_graph(module)
    kept_apart(graph)
    solution = least_sent(graph, mesh)
    _, sent = compiled(module, graph, solution)
    assert dict(sent) == solution.predicted.comm_bytes
    # And the plan is read back as it was made.
    graph, written = read_layouts(module)
    quotient, states = replay(build_problem(graph), [name for name, _ in solution.mesh], written)
    assert [states[k] for k in quotient.klass] == [solution.states[k] for k in solution.costs.quotient.klass]
