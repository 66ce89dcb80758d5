"""Dropout in scanned, rematerialised layers with the hardware generator's keys (`rbg`), one key per layer."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from zoo.harness import About, Case

ABOUT = About("JAX", "dropout in scanned remat layers, rbg keys")


def step(w: jax.Array, x: jax.Array, key: jax.Array) -> Any:
    def layer(h: jax.Array, layer: Any) -> Any:
        w, key = layer
        h = jnp.tanh(h @ w)
        keep = jax.random.bernoulli(key, 0.9, h.shape)
        return jnp.where(keep, h / 0.9, 0), None

    def loss_fn(w: jax.Array) -> jax.Array:
        h, _ = jax.lax.scan(jax.checkpoint(layer), x, (w, jax.random.split(key, w.shape[0])))
        return (h**2).mean()

    loss, g = jax.value_and_grad(loss_fn)(w)
    return w - 0.1 * g, loss


def case() -> Case:
    w = jax.random.normal(jax.random.key(0), (4, 16, 16)) * 0.3
    batches = [(jax.random.normal(jax.random.key(i), (8, 16)), jax.random.key(i, impl="rbg")) for i in range(2)]
    return Case(step, (w,), batches, donate=(0,))
