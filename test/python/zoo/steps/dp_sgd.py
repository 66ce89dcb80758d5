"""DP-SGD: gradients of single examples by vmap, each clipped, their sum with noise."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case

ABOUT = About("JAX", "DP-SGD: vmapped gradients, clipping per example, noise", ci=("stages",))


def step(params: Any, x: jax.Array, y: jax.Array, key: jax.Array) -> Any:
    def loss_fn(p: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        logits = jnp.tanh(x @ p["a"]) @ p["b"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y)

    def clipped(x: jax.Array, y: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
        factor = jnp.minimum(1.0, 0.5 / (optax.global_norm(grads) + 1e-12))
        return loss, jax.tree.map(lambda g: g * factor, grads)

    losses, grads = jax.vmap(clipped)(x, y)
    summed = jax.tree.map(lambda g: g.sum(0), grads)
    leaves, tree = jax.tree.flatten(summed)
    keys = jax.tree.unflatten(tree, list(jax.random.split(key, len(leaves))))
    noisy = jax.tree.map(lambda g, k: (g + 0.5 * jax.random.normal(k, g.shape)) / x.shape[0], summed, keys)
    return jax.tree.map(lambda p, g: p - 0.5 * g, params, noisy), losses.mean()


def case() -> Case:
    a, b = jax.random.split(jax.random.key(0))
    params = {"a": jax.random.normal(a, (12, 16)) * 0.3, "b": jax.random.normal(b, (16, 4)) * 0.3}
    batches = []
    for i in range(2):
        a, b, c = jax.random.split(jax.random.key(i), 3)
        batches.append((jax.random.normal(a, (16, 12)), jax.random.randint(b, (16,), 0, 4), c))
    return Case(step, (params,), batches, donate=(0,))
