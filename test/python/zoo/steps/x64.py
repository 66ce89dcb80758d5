"""Double precision: a physics-informed network whose loss has second derivatives, 64-bit everything."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zoo.harness import About, Case

ABOUT = About("JAX", "float64: physics-informed network, second derivatives", ci=("one",), x64=True)


def u(p: dict[str, jax.Array], t: jax.Array) -> jax.Array:
    return (jnp.tanh(t * p["a"] + p["b"]) @ p["c"])[0]


def step(params: dict[str, jax.Array], t: jax.Array) -> Any:
    def loss_fn(p: dict[str, jax.Array]) -> jax.Array:
        second = jax.vmap(jax.grad(jax.grad(u, argnums=1), argnums=1), in_axes=(None, 0))(p, t)
        value = jax.vmap(u, in_axes=(None, 0))(p, t)
        start = (u(p, jnp.float64(0)) - 1) ** 2
        return ((second + value) ** 2).mean() + start

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads), loss


def case() -> Case:
    random = np.random.default_rng(0)
    params = {"a": random.normal(size=16), "b": random.normal(size=16), "c": random.normal(size=(16, 1))}
    return Case(step, (params,), [(random.uniform(0, 3, 32),) for _ in range(2)], rtol=1e-9, atol=1e-12)
