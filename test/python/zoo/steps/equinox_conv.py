"""Equinox: a small CNN as a pytree, `filter_value_and_grad`, arrays apart from the rest by `eqx.partition`."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case

ABOUT = About("Equinox", "CNN, vmap over examples, partition/combine, Adam", ci=("one",))


class CNN(eqx.Module):
    layers: list[Any]

    def __init__(self, key: jax.Array) -> None:
        a, b, c = jax.random.split(key, 3)
        self.layers = [
            eqx.nn.Conv2d(1, 8, kernel_size=3, key=a), eqx.nn.MaxPool2d(2), jax.nn.relu, jnp.ravel,
            eqx.nn.Linear(8 * 81, 32, key=b), jax.nn.sigmoid, eqx.nn.Linear(32, 10, key=c), jax.nn.log_softmax,
        ]  # fmt: skip

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = layer(x)
        return x


def case() -> Case:
    params, static = eqx.partition(CNN(jax.random.key(0)), eqx.is_inexact_array)
    tx = optax.adam(1e-2)

    def step(params: Any, opt_state: Any, x: jax.Array, y: jax.Array) -> Any:
        @eqx.filter_value_and_grad
        def loss_fn(model: CNN) -> jax.Array:
            predicted = jax.vmap(model)(x)
            return -jnp.mean(jnp.take_along_axis(predicted, jnp.expand_dims(y, 1), axis=1))

        loss, grads = loss_fn(eqx.combine(params, static))
        updates, opt_state = tx.update(grads, opt_state, params)
        return eqx.apply_updates(params, updates), opt_state, loss

    batches = []
    for i in range(2):
        a, b = jax.random.split(jax.random.key(i))
        batches.append((jax.random.normal(a, (16, 1, 12, 12)), jax.random.randint(b, (16,), 0, 10)))
    return Case(step, (params, tx.init(params)), batches, donate=(0, 1), rtol=1e-3)
