"""Experts without dropped tokens: tokens sorted by expert, `jax.lax.ragged_dot`, and sorted back."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case, Refused

ABOUT = About(
    "JAX", "MoE without capacity: tokens sorted by expert, ragged_dot",
    stages=Refused("all examples", "tokens of all examples are sorted by their expert"),
)  # fmt: skip
WIDTH, INNER, EXPERTS = 16, 32, 4
TX = optax.adam(1e-2, eps=1e-4)


def experts(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    gates = jax.nn.softmax(x @ p["router"])
    weights, chosen = jax.lax.top_k(gates, 2)
    order = jnp.argsort(chosen.reshape(-1))
    sizes = jnp.bincount(chosen.reshape(-1), length=EXPERTS).astype(jnp.int32)
    h = jax.nn.gelu(jax.lax.ragged_dot(x[order // 2], p["up"], sizes))
    y = jax.lax.ragged_dot(h, p["down"], sizes)
    back = jnp.argsort(order)
    return (y[back].reshape(-1, 2, WIDTH) * weights[..., None]).sum(1)


def step(params: dict[str, jax.Array], opt_state: Any, x: jax.Array, y: jax.Array) -> Any:
    def loss_fn(p: dict[str, jax.Array]) -> jax.Array:
        tokens = x.reshape(-1, WIDTH)
        out = (tokens + experts(p, tokens)).reshape(x.shape)
        return ((out @ p["head"] - y) ** 2).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = TX.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def case() -> Case:
    k = jax.random.split(jax.random.key(0), 4)
    params = {
        "router": jax.random.normal(k[0], (WIDTH, EXPERTS)),
        "up": jax.random.normal(k[1], (EXPERTS, WIDTH, INNER)) * 0.2,
        "down": jax.random.normal(k[2], (EXPERTS, INNER, WIDTH)) * 0.2,
        "head": jax.random.normal(k[3], (WIDTH, 4)) * 0.2,
    }
    batches = []
    for i in range(2):
        a, b = jax.random.split(jax.random.key(i))
        batches.append((jax.random.normal(a, (8, 6, WIDTH)), jax.random.normal(b, (8, 6, 4))))
    return Case(step, (params, TX.init(params)), batches, rtol=1e-3)
