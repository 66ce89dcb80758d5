"""`jax.debug.print` of the loss and inside a scan over layers, as one leaves it in while searching for NaNs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from zoo.harness import About, Case, Refused

ABOUT = About(
    "JAX", "jax.debug.print in a step and in a scan",
    stages=Refused("a callback in a loop or branch .* once per micro-batch", "it prints in a scan over layers"),
)  # fmt: skip


def step(w: jax.Array, x: jax.Array) -> Any:
    def layer(h: jax.Array, w: jax.Array) -> Any:
        h = jnp.tanh(h @ w)
        jax.debug.print("mean {m}", m=h.mean())
        return h, None

    def loss_fn(w: jax.Array) -> jax.Array:
        return (jax.lax.scan(layer, x, w)[0] ** 2).mean()

    loss, g = jax.value_and_grad(loss_fn)(w)
    jax.debug.print("loss {loss}", loss=loss)
    return w - 0.1 * g, loss


def case() -> Case:
    w = jax.random.normal(jax.random.key(0), (2, 8, 8)) * 0.3
    return Case(step, (w,), [(jax.random.normal(jax.random.key(i), (16, 8)),) for i in range(2)])
