"""A loss that calls NumPy on the host by `jax.pure_callback`, for each example."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zoo.harness import About, Case, Refused

ABOUT = About(
    "JAX", "pure_callback to NumPy", ci=("one",),
    stages=Refused("what a callback returns that sees all of them", "the callback is given all examples at once"),
)  # fmt: skip


def on_host(x: Any) -> Any:
    return np.sort(np.asarray(x), axis=-1)


def step(params: dict[str, jax.Array], x: jax.Array) -> Any:
    ranked = jax.pure_callback(on_host, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    def loss_fn(p: dict[str, jax.Array]) -> jax.Array:
        return ((jnp.tanh(x @ p["a"]) @ p["b"] - ranked) ** 2).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def case() -> Case:
    a, b = jax.random.split(jax.random.key(0))
    params = {"a": jax.random.normal(a, (8, 16)) * 0.3, "b": jax.random.normal(b, (16, 8)) * 0.3}
    return Case(step, (params,), [(jax.random.normal(jax.random.key(i), (16, 8)),) for i in range(2)])
