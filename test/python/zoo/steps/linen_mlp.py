"""Linen: an MLP with dropout, Flax's `TrainState` and Adam."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

from zoo.harness import About, Case

ABOUT = About("Linen", "MLP, dropout, TrainState, Adam", ci=("stages",))


class MLP(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        for width in (32, 32):
            x = nn.relu(nn.Dense(width)(x))
            x = nn.Dropout(0.1, deterministic=not train)(x)
        return nn.Dense(10)(x)


def step(state: TrainState, batch: dict[str, jax.Array], key: jax.Array) -> Any:
    def loss_fn(params: Any) -> Any:
        logits = state.apply_fn({"params": params}, batch["image"], True, rngs={"dropout": key})
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()
        return loss, (logits.argmax(-1) == batch["label"]).mean()

    (loss, accuracy), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads), {"loss": loss, "accuracy": accuracy}


def case() -> Case:
    model = MLP()
    params = model.init(jax.random.key(0), jnp.ones((1, 24)), False)["params"]
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(1e-2))
    batches = []
    for i in range(3):
        a, b, c = jax.random.split(jax.random.key(i), 3)
        image, label = jax.random.normal(a, (16, 24)), jax.random.randint(b, (16,), 0, 10)
        batches.append(({"image": image, "label": label}, c))
    return Case(step, (state,), batches, donate=(0,))
