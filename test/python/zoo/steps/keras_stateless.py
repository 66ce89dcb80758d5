"""Keras 3 on JAX: a custom training loop with `stateless_call` and the optimizer's `stateless_apply`."""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp

from zoo.harness import About, Case

ABOUT = About("Keras 3", "stateless_call, stateless_apply, custom loop", needs=("keras",))


def case() -> Case:
    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.layers.Input((16,)), keras.layers.Dense(32, activation="relu"), keras.layers.LayerNormalization(),
         keras.layers.Dense(4)]
    )  # fmt: skip
    optimizer = keras.optimizers.Adam(1e-2, epsilon=1e-5)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.CategoricalCrossentropy(from_logits=True)

    def step(state: Any, x: jax.Array, y: jax.Array) -> Any:
        trainable, fixed, opt = state

        def loss_fn(trainable: Any, fixed: Any) -> Any:
            logits, fixed = model.stateless_call(trainable, fixed, x, training=True)
            return loss_of(y, logits), fixed

        (loss, fixed), grads = jax.value_and_grad(loss_fn, has_aux=True)(trainable, fixed)
        trainable, opt = optimizer.stateless_apply(opt, grads, trainable)
        return (trainable, fixed, opt), loss

    def values(variables: Any) -> list[jax.Array]:
        return [jnp.array(v.value) for v in variables]

    state = (values(model.trainable_variables), values(model.non_trainable_variables), values(optimizer.variables))
    batches = []
    for i in range(2):
        a, b = jax.random.split(jax.random.key(i))
        batches.append((jax.random.normal(a, (16, 16)), jax.nn.one_hot(jax.random.randint(b, (16,), 0, 4), 4)))
    return Case(step, (state,), batches, rtol=1e-3)
