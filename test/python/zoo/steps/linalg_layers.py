"""Linear algebra inside the loss: Cholesky, QR, SVD, eigh, solve, expm, slogdet of matrices made of parameters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from zoo.harness import About, Case, Refused

ABOUT = About(
    "JAX", "cholesky, qr, svd, eigh, solve, expm, slogdet",
    stages=Refused("not sync-free", "examples are whitened by the covariance of all of them"),
)  # fmt: skip


def step(params: dict[str, jax.Array], x: jax.Array) -> Any:
    def loss_fn(p: dict[str, jax.Array]) -> jax.Array:
        cov = x.T @ x / x.shape[0] + p["a"] @ p["a"].T + jnp.eye(8)
        chol = jnp.linalg.cholesky(cov)
        white = jax.scipy.linalg.solve_triangular(chol, x.T, lower=True).T
        q, _ = jnp.linalg.qr(p["b"])
        rotated = white @ q @ jax.scipy.linalg.expm(p["c"] - p["c"].T)
        values = jnp.linalg.eigvalsh(cov)
        singular = jnp.linalg.svd(p["b"], compute_uv=False)
        solved = jnp.linalg.solve(cov, p["b"])
        return (rotated**2).mean() + values.max() + singular.sum() + (solved**2).sum() + jnp.linalg.slogdet(cov)[1]

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), loss


def case() -> Case:
    k = jax.random.split(jax.random.key(0), 3)
    params = {n: jax.random.normal(key, (8, 8)) * 0.4 for n, key in zip("abc", k, strict=True)}
    batches = [(jax.random.normal(jax.random.key(i), (16, 8)),) for i in range(2)]
    return Case(step, (params,), batches, rtol=2e-3)
