"""Which values of a loop over layers are gradients of a layer's parameters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from search_programs import graph_of, spec

from rhino.program.layers import made_for_layers

LAYERS, ROWS, WIDTH = 6, 32, 16
STACK = spec(LAYERS, WIDTH, WIDTH)


def loss(w: jax.Array, x: jax.Array) -> jax.Array:
    return (jax.lax.scan(lambda h, row: (jnp.tanh(h @ row), None), x, w)[0] ** 2).mean()


def in_half(w: jax.Array, x: jax.Array) -> jax.Array:
    return loss(w.astype(jnp.bfloat16), x.astype(jnp.bfloat16)).astype(jnp.float32)


@pytest.mark.parametrize("of", [loss, in_half])
def test_a_loop_over_layers(of: Any) -> None:
    graph = graph_of(lambda w, x: w - jax.grad(of)(w, x), STACK, spec(ROWS, WIDTH))
    _, backward = (op for op in graph.ops if op.name == "stablehlo.while")
    made = [graph.ops[graph.values[v].producer] for v in made_for_layers(graph)]
    assert {(op.parent, op.name) for op in made if graph.values[op.results[0]].elements == WIDTH * WIDTH} == {
        (backward.index, "stablehlo.dot_general")
    }


def test_what_is_added_up_over_parts_of_a_batch_is_of_no_layer() -> None:
    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        def part(total: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
            return total + jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).mean())(w), None

        return jax.lax.scan(part, jnp.zeros_like(w), x)[0]

    graph = graph_of(step, spec(WIDTH, WIDTH), spec(4, ROWS, WIDTH))
    assert not made_for_layers(graph)


def test_what_a_convolution_makes_is_none() -> None:
    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        def layer(h: jax.Array, row: jax.Array) -> tuple[jax.Array, None]:
            return jnp.tanh(jax.lax.conv_general_dilated(h, row, (1, 1), "SAME")), None

        return w - jax.grad(lambda w: (jax.lax.scan(layer, x, w)[0] ** 2).mean())(w)

    graph = graph_of(step, spec(LAYERS, 4, 4, 3, 3), spec(2, 4, 8, 8))
    assert not [v for v in made_for_layers(graph) if graph.values[v].elements == 4 * 4 * 3 * 3]
