"""k-means by `lax.scan` over iterations, distances by products, centres as means of one-hot assignments."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from zoo.harness import About, Case, Refused

ABOUT = About(
    "JAX", "k-means: iterations by scan over the whole batch",
    stages=Refused("not sync-free", "centres are means of all examples"),
)  # fmt: skip


def step(centres: jax.Array, x: jax.Array) -> Any:
    def iteration(centres: jax.Array, _: None) -> Any:
        distance = (x**2).sum(-1, keepdims=True) - 2 * x @ centres.T + (centres**2).sum(-1)
        nearest = jax.nn.one_hot(distance.argmin(-1), centres.shape[0])
        totals = nearest.T @ x
        count = nearest.sum(0)[:, None]
        return jnp.where(count > 0, totals / jnp.maximum(count, 1), centres), distance.min(-1).mean()

    return jax.lax.scan(iteration, centres, None, length=4)


def case() -> Case:
    batches = [(jax.random.normal(jax.random.key(i), (64, 8)),) for i in range(2)]
    return Case(step, (jax.random.normal(jax.random.key(9), (6, 8)),), batches)
