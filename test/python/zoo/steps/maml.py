"""MAML: a gradient through an inner gradient step, vmapped over tasks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case

ABOUT = About("JAX", "MAML: gradient through gradient steps, vmap over tasks")


def model(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ p["a"]) @ p["b"]


def loss(p: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    return ((model(p, x) - y) ** 2).mean()


def adapted(p: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
    for _ in range(2):
        p = jax.tree.map(lambda w, g: w - 0.1 * g, p, jax.grad(loss)(p, x, y))
    return p


def case() -> Case:
    tx = optax.adam(1e-2)

    def step(params: Any, opt_state: Any, x1: jax.Array, y1: jax.Array, x2: jax.Array, y2: jax.Array) -> Any:
        def outer(params: Any) -> jax.Array:
            return jax.vmap(lambda *task: loss(adapted(params, *task[:2]), *task[2:]))(x1, y1, x2, y2).mean()

        value, grads = jax.value_and_grad(outer)(params)
        updates, opt_state = tx.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, value

    a, b = jax.random.split(jax.random.key(0))
    params = {"a": jax.random.normal(a, (2, 32)), "b": jax.random.normal(b, (32, 1)) * 0.1}
    batches = []
    for i in range(2):
        x = jax.random.normal(jax.random.key(i), (2, 8, 10, 2))
        y = jnp.sin(x.sum(-1, keepdims=True))
        batches.append((x[0], y[0], x[1], y[1]))
    return Case(step, (params, tx.init(params)), batches, rtol=1e-3)
