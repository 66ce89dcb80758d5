"""A step whose layers, of two products each, are a loop."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from search_programs import graph_of, spec

from rhino.program import Graph

LAYERS = 8


def step(weights: tuple[jax.Array, jax.Array], x: jax.Array) -> Any:
    def layer(h: jax.Array, w: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        return jnp.tanh(h @ w[0]) @ w[1], None

    def loss(weights: tuple[jax.Array, jax.Array]) -> jax.Array:
        return (jax.lax.scan(layer, x, weights)[0] ** 2).mean()

    return jax.tree.map(lambda w, g: w - 1e-3 * g, weights, jax.grad(loss)(weights))


def layers_of(batch: int) -> Graph:
    """The step on so many examples."""
    weights = spec(LAYERS, 2048, 8192), spec(LAYERS, 8192, 2048)
    return graph_of(step, weights, spec(batch, 2048), donate=(0,))
