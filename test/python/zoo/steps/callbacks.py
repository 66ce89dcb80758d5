"""A loss that calls NumPy on the host by `jax.pure_callback`, for each example."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zoo.harness import About, Case, Refused

ABOUT = About(
    "JAX", "pure_callback to NumPy", ci=("one",),
    stages=Refused("how it works on it is not known", "a callback reads the batch"),
)  # fmt: skip


def on_host(x: Any) -> Any:
    return np.sort(np.asarray(x), axis=-1)


def step(w: jax.Array, x: jax.Array) -> Any:
    ranked = jax.pure_callback(on_host, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    def loss_fn(w: jax.Array) -> jax.Array:
        return (jnp.tanh(ranked @ w) ** 2).mean()

    loss, g = jax.value_and_grad(loss_fn)(w)
    return w - 0.1 * g, loss


def case() -> Case:
    w = jax.random.normal(jax.random.key(0), (8, 4))
    return Case(step, (w,), [(jax.random.normal(jax.random.key(i), (16, 8)),) for i in range(2)])
