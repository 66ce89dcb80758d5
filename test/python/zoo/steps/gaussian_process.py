"""A Gaussian process: the marginal likelihood of all points by a Cholesky factor of their kernel matrix."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from zoo.harness import About, Case, Refused

ABOUT = About(
    "JAX", "Gaussian process: Cholesky of the kernel matrix of all examples",
    stages=Refused("brings examples together with other examples", "a kernel matrix of all examples"),
)  # fmt: skip


def step(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> Any:
    def loss_fn(p: dict[str, jax.Array]) -> jax.Array:
        scaled = x / jnp.exp(p["length"])
        distance = ((scaled[:, None] - scaled[None]) ** 2).sum(-1)
        kernel = jnp.exp(p["scale"] - distance / 2) + jnp.exp(p["noise"]) * jnp.eye(x.shape[0])
        chol = jnp.linalg.cholesky(kernel)
        alpha = jax.scipy.linalg.cho_solve((chol, True), y)
        return 0.5 * y @ alpha + jnp.log(jnp.diag(chol)).sum()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), loss


def case() -> Case:
    params = {"length": jnp.zeros(3), "scale": jnp.float32(0), "noise": jnp.float32(-1)}
    batches = []
    for i in range(2):
        x = jax.random.normal(jax.random.key(i), (32, 3))
        batches.append((x, jnp.sin(x.sum(-1))))
    return Case(step, (params,), batches, rtol=1e-3)
