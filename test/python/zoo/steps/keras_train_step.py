"""Keras 3 on JAX: the compiled model's own `train_step`, as `fit` calls it: dropout, BatchNorm-free CNN, metrics."""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zoo.harness import About, Case

ABOUT = About("Keras 3", "model.train_step of a compiled CNN: dropout, metrics", needs=("keras",))


def case() -> Case:
    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential(
        [layers.Input((8, 8, 3)), layers.Conv2D(8, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten(),
         layers.Dropout(0.2), layers.Dense(4)]
    )  # fmt: skip
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-2, epsilon=1e-5), loss=loss, metrics=["accuracy"])
    rng = np.random.default_rng(0)
    batches = [((rng.normal(size=(16, 8, 8, 3)).astype("float32"), rng.integers(0, 4, 16)),) for _ in range(2)]
    model._symbolic_build(data_batch=batches[0][0])

    def values(variables: Any) -> list[jax.Array]:
        return [jnp.array(v.value) for v in variables]

    state = (
        values(model.trainable_variables), values(model.non_trainable_variables), values(model.optimizer.variables),
        values(model.metrics_variables),
    )  # fmt: skip
    return Case(model.train_step, (state,), batches, after=lambda out: ((out[1],), out[0]), rtol=1e-3)
