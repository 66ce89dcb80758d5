"""Sophia: a diagonal Hessian estimated every few steps by a Hessian-vector product with random signs, under a cond."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from zoo.common import classes, mlp_loss, mlp_params
from zoo.harness import About, Case, Refused

ABOUT = About(
    "JAX", "Sophia-H: Hutchinson estimate under lax.cond",
    stages=Refused("not sync-free", "one branch of a cond sums over all examples"),
)  # fmt: skip


def step(state: dict[str, Any], x: jax.Array, y: jax.Array) -> Any:
    params = state["params"]

    def loss_fn(p: Any) -> jax.Array:
        return mlp_loss(p, x, y)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    key, use = jax.random.split(state["key"])

    def estimate() -> Any:
        leaves, tree = jax.tree.flatten(params)
        keys = jax.random.split(use, len(leaves))
        signs = jax.tree.unflatten(
            tree, [jax.random.rademacher(k, p.shape, p.dtype) for k, p in zip(keys, leaves, strict=True)]
        )
        _, hvp = jax.jvp(jax.grad(loss_fn), (params,), (signs,))
        return jax.tree.map(lambda h, s, v: 0.9 * h + 0.1 * s * v, state["hessian"], signs, hvp)

    hessian = jax.lax.cond(state["count"] % 2 == 0, estimate, lambda: state["hessian"])
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mu"], grads)
    params = jax.tree.map(
        lambda p, m, h: p - 0.05 * jnp.clip(m / jnp.maximum(jnp.abs(h), 1e-2), -1, 1), params, mu, hessian
    )
    return {"params": params, "mu": mu, "hessian": hessian, "key": key, "count": state["count"] + 1}, loss


def case() -> Case:
    params = mlp_params()
    zeros = jax.tree.map(jnp.zeros_like, params)
    state = {"params": params, "mu": zeros, "hessian": zeros, "key": jax.random.key(3), "count": jnp.int32(0)}
    return Case(step, (state,), classes(2), rtol=1e-3)
