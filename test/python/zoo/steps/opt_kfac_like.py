"""A Gauss-Newton step: normal equations of the Jacobian of all residuals, solved by Cholesky (Levenberg-Marquardt)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from zoo.harness import About, Case, Refused

ABOUT = About(
    "JAX", "Levenberg-Marquardt: jacrev, cho_solve, ravel_pytree",
    stages=Refused("not sync-free", "normal equations of all residuals are solved"),
)  # fmt: skip


def step(params: Any, x: jax.Array, y: jax.Array) -> Any:
    flat, unravel = ravel_pytree(params)

    def residuals(flat: jax.Array) -> jax.Array:
        p = unravel(flat)
        return (jnp.tanh(x @ p["a"]) @ p["b"])[:, 0] - y

    r, jac = residuals(flat), jax.jacrev(residuals)(flat)
    normal = jac.T @ jac + 0.1 * jnp.eye(flat.shape[0])
    delta = jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(normal), jac.T @ r)
    return unravel(flat - delta), (r**2).mean()


def case() -> Case:
    a, b = jax.random.split(jax.random.key(0))
    params = {"a": jax.random.normal(a, (4, 8)) * 0.5, "b": jax.random.normal(b, (8, 1)) * 0.5}
    batches = []
    for i in range(2):
        x = jax.random.normal(jax.random.key(i), (16, 4))
        batches.append((x, jnp.sin(x).sum(-1)))
    return Case(step, (params,), batches, rtol=2e-3)
