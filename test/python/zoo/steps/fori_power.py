"""Spectral normalisation: power iterations by `fori_loop`, their vectors kept in the state."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from zoo.harness import About, Case

ABOUT = About("JAX", "spectral normalisation: fori_loop, vectors in the state")


def step(state: dict[str, Any], x: jax.Array, y: jax.Array) -> Any:
    def normalised(w: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
        def body(_: Any, u: jax.Array) -> jax.Array:
            v = w.T @ u
            u = w @ (v / (jnp.linalg.norm(v) + 1e-6))
            return u / (jnp.linalg.norm(u) + 1e-6)

        u = jax.lax.stop_gradient(jax.lax.fori_loop(0, 3, body, jax.lax.stop_gradient(u)))
        v = jax.lax.stop_gradient(w.T @ u)
        v = v / (jnp.linalg.norm(v) + 1e-6)
        return w / (u @ w @ v), u

    def loss_fn(params: Any) -> Any:
        h, us = x, []
        for w, u in zip(params, state["u"], strict=True):
            w, u = normalised(w, u)
            us.append(u)
            h = jnp.tanh(h @ w)
        return ((h.sum(-1) - y) ** 2).mean(), us

    (loss, us), grads = jax.value_and_grad(loss_fn, has_aux=True)(state["params"])
    return {"params": jax.tree.map(lambda p, g: p - 0.1 * g, state["params"], grads), "u": us}, loss


def case() -> Case:
    k = jax.random.split(jax.random.key(0), 4)
    params = [jax.random.normal(k[0], (8, 16)), jax.random.normal(k[1], (16, 4))]
    state = {"params": params, "u": [jax.random.normal(k[2], (8,)), jax.random.normal(k[3], (16,))]}
    batches = []
    for i in range(2):
        a, b = jax.random.split(jax.random.key(i))
        batches.append((jax.random.normal(a, (16, 8)), jax.random.normal(b, (16,))))
    return Case(step, (state,), batches, rtol=1e-3)
