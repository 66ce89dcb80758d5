"""Shampoo: inverse fourth roots of the gradients' covariances, by `eigh`, for every matrix."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from zoo.common import classes, mlp_loss, mlp_params
from zoo.harness import About, Case

ABOUT = About("JAX", "Shampoo: preconditioners by eigh", ci=("mesh",))


def root(m: jax.Array) -> jax.Array:
    values, vectors = jnp.linalg.eigh(m + 1e-3 * jnp.eye(m.shape[0]))
    return (vectors * jnp.maximum(values, 1e-6) ** -0.25) @ vectors.T


def step(params: Any, stats: Any, x: jax.Array, y: jax.Array) -> Any:
    loss, grads = jax.value_and_grad(mlp_loss)(params, x, y)

    def one(p: jax.Array, g: jax.Array, s: Any) -> Any:
        if g.ndim < 2:
            return p - 0.1 * g, s
        left, right = s[0] + g @ g.T, s[1] + g.T @ g
        return p - 0.1 * root(left) @ g @ root(right), (left, right)

    flat, tree = jax.tree.flatten(params)
    out = [one(p, g, s) for p, g, s in zip(flat, tree.flatten_up_to(grads), stats, strict=True)]
    return jax.tree.unflatten(tree, [p for p, _ in out]), [s for _, s in out], loss


def case() -> Case:
    params = mlp_params()
    stats = [
        (jnp.eye(p.shape[0]) * 0.1, jnp.eye(p.shape[1]) * 0.1) if p.ndim > 1 else None for p in jax.tree.leaves(params)
    ]
    return Case(step, (params, stats), classes(2), rtol=5e-3)
