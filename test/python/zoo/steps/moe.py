"""A mixture of experts: top-2 routing with capacity, dispatch and combine by one-hot products, a balance loss."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case, Refused

ABOUT = About(
    "JAX", "MoE: top-2 routing with capacity, balance loss",
    stages=Refused("needs all examples at once", "tokens of all examples compete for places"),
)  # fmt: skip
EXPERTS, CAPACITY, WIDTH = 4, 24, 16


def route(x: jax.Array, gate: jax.Array) -> tuple[jax.Array, jax.Array]:
    probabilities = jax.nn.softmax(x @ gate)
    weights, chosen = jax.lax.top_k(probabilities, 2)
    onehot = jax.nn.one_hot(chosen, EXPERTS)
    place = jnp.cumsum(onehot.reshape(-1, EXPERTS), axis=0).reshape(onehot.shape) * onehot - 1
    keep = jax.nn.one_hot(place.max(-1).astype(jnp.int32), CAPACITY)
    combine = jnp.einsum("tk,tke,tkc->tec", weights, onehot, keep)
    balance = EXPERTS * (probabilities.mean(0) * onehot[:, 0].mean(0)).sum()
    return combine, balance


def case() -> Case:
    tx = optax.adam(1e-2, eps=1e-5)

    def step(params: Any, opt_state: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss_fn(p: Any) -> jax.Array:
            tokens = x.reshape(-1, WIDTH)
            combine, balance = route(tokens, p["gate"])
            inputs = jnp.einsum("tec,td->ecd", (combine > 0).astype(x.dtype), tokens)
            hidden = jax.nn.gelu(jnp.einsum("ecd,edf->ecf", inputs, p["up"]))
            out = jnp.einsum("tec,ecd->td", combine, jnp.einsum("ecf,efd->ecd", hidden, p["down"]))
            return ((out.reshape(x.shape) + x - y) ** 2).mean() + 0.01 * balance

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    k = jax.random.split(jax.random.key(0), 3)
    params = {
        "gate": jax.random.normal(k[0], (WIDTH, EXPERTS)),
        "up": jax.random.normal(k[1], (EXPERTS, WIDTH, 32)) * 0.2,
        "down": jax.random.normal(k[2], (EXPERTS, 32, WIDTH)) * 0.2,
    }
    batches = []
    for i in range(2):
        a, b = jax.random.split(jax.random.key(i))
        batches.append((jax.random.normal(a, (8, 6, WIDTH)), jax.random.normal(b, (8, 6, WIDTH))))
    return Case(step, (params, tx.init(params)), batches, rtol=1e-3)
