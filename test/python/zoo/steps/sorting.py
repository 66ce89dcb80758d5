"""Sorts in the loss: sort, argsort, top_k, quantiles, searchsorted, `unique` of a given size, each per example."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from zoo.harness import About, Case

ABOUT = About("JAX", "sort, argsort, top_k, median, unique(size=) per example", ci=("one",))


def step(w: jax.Array, x: jax.Array, ids: jax.Array) -> Any:
    def loss_fn(w: jax.Array) -> jax.Array:
        h = jnp.tanh(x @ w)
        ranked = jnp.sort(h, axis=-1)
        order = jnp.argsort(-h, axis=-1)
        best, _ = jax.lax.top_k(h, 3)
        spread = jnp.quantile(h, 0.75, axis=-1) - jnp.median(h, axis=-1)
        place = jax.vmap(lambda row, v: jnp.searchsorted(row, v))(ranked, h[:, 0])
        distinct = jax.vmap(lambda r: jnp.unique(r, size=4, fill_value=-1))(ids)
        weight = (distinct >= 0).sum(-1) + place + order[:, 0]
        return ((ranked[:, -1] - ranked[:, 0]) * weight).mean() + best.sum(-1).mean() + (spread**2).mean()

    loss, g = jax.value_and_grad(loss_fn)(w)
    return w - 0.01 * g, loss


def case() -> Case:
    w = jax.random.normal(jax.random.key(0), (8, 12)) * 0.3
    batches = []
    for i in range(2):
        a, b = jax.random.split(jax.random.key(i))
        batches.append((jax.random.normal(a, (16, 8)), jax.random.randint(b, (16, 6), 0, 4)))
    return Case(step, (w,), batches)
