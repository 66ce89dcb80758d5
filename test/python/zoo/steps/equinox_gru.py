"""Equinox: a GRU over time by `lax.scan`, with the whole model as the state."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case

ABOUT = About("Equinox", "GRU by lax.scan, RMSProp")


class RNN(eqx.Module):
    cell: eqx.nn.GRUCell
    linear: eqx.nn.Linear

    def __init__(self, key: jax.Array) -> None:
        a, b = jax.random.split(key)
        self.cell = eqx.nn.GRUCell(4, 16, key=a)
        self.linear = eqx.nn.Linear(16, 1, key=b)

    def __call__(self, xs: jax.Array) -> jax.Array:
        hidden, _ = jax.lax.scan(lambda h, x: (self.cell(x, h), None), jnp.zeros(16), xs)
        return jax.nn.sigmoid(self.linear(hidden))[0]


def case() -> Case:
    params, static = eqx.partition(RNN(jax.random.key(0)), eqx.is_inexact_array)
    tx = optax.rmsprop(1e-2)

    def step(params: Any, opt_state: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss_fn(params: Any) -> jax.Array:
            p = jax.vmap(eqx.combine(params, static))(x)
            return -jnp.mean(y * jnp.log(p) + (1 - y) * jnp.log(1 - p))

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state)
        return eqx.apply_updates(params, updates), opt_state, loss

    batches = []
    for i in range(2):
        x = jax.random.normal(jax.random.key(i), (16, 10, 4))
        batches.append((x, (x.sum((1, 2)) > 0).astype(jnp.float32)))
    return Case(step, (params, tx.init(params)), batches, rtol=1e-3)
