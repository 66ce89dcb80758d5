"""Plain JAX: a linear model and gradient descent, the first program of every tutorial; parameters as a dictionary."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from zoo.harness import About, Case

ABOUT = About("JAX", "linear regression, gradient descent, sizes that do not divide", ci=("one", "mesh", "stages"))


def step(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> Any:
    def loss_fn(p: dict[str, jax.Array]) -> jax.Array:
        return jnp.mean((x @ p["w"] + p["b"] - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def case() -> Case:
    params = {"w": jnp.zeros((13, 7)), "b": jnp.zeros(7)}
    batches = []
    for i in range(3):
        a, b = jax.random.split(jax.random.key(i))
        batches.append((jax.random.normal(a, (10, 13)), jax.random.normal(b, (10, 7))))
    return Case(step, (params,), batches)
