"""Equinox: BatchNorm with its statistics in an `eqx.nn.State`, dropout with a key for each example, Adam."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case, Refused

ABOUT = About(
    "Equinox", "BatchNorm in eqx.nn.State, dropout by vmapped keys",
    stages=Refused("not sync-free", "statistics of the batch"),
)  # fmt: skip


class Net(eqx.Module):
    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    dropout: eqx.nn.Dropout
    second: eqx.nn.Linear

    def __init__(self, key: jax.Array) -> None:
        a, b = jax.random.split(key)
        self.first = eqx.nn.Linear(16, 32, key=a)
        self.norm = eqx.nn.BatchNorm(32, axis_name="batch", mode="batch")
        self.dropout = eqx.nn.Dropout(0.1)
        self.second = eqx.nn.Linear(32, 4, key=b)

    def __call__(self, x: jax.Array, state: eqx.nn.State, key: jax.Array) -> tuple[jax.Array, eqx.nn.State]:
        x, state = self.norm(self.first(x), state)
        return self.second(self.dropout(jax.nn.relu(x), key=key)), state


def case() -> Case:
    model, norms = eqx.nn.make_with_state(Net)(jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_inexact_array)
    tx = optax.adam(1e-2, eps=1e-4)

    def step(params: Any, norms: Any, opt_state: Any, x: jax.Array, y: jax.Array, key: jax.Array) -> Any:
        def loss_fn(params: Any, norms: Any) -> Any:
            call = jax.vmap(eqx.combine(params, static), axis_name="batch", in_axes=(0, None, 0), out_axes=(0, None))
            out, norms = call(x, norms, jax.random.split(key, x.shape[0]))
            return jnp.mean((out - y) ** 2), norms

        (loss, norms), grads = eqx.filter_value_and_grad(loss_fn, has_aux=True)(params, norms)
        updates, opt_state = tx.update(grads, opt_state, params)
        return eqx.apply_updates(params, updates), norms, opt_state, loss

    batches = []
    for i in range(2):
        a, b = jax.random.split(jax.random.key(i))
        batches.append((jax.random.normal(a, (16, 16)), jax.random.normal(b, (16, 4)), jax.random.key(i)))
    return Case(step, (params, norms, tx.init(params)), batches, rtol=1e-3)
