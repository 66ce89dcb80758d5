"""Linen with gradient accumulation by a `fori_loop` of its own: dropout, metrics summed, one update of a TrainState."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

from zoo.harness import About, Case

ABOUT = About("Linen", "gradient accumulation by fori_loop: dropout, metrics, TrainState")
PARTS = 4


class Net(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for width in (32, 32):
            x = nn.Dropout(0.1, deterministic=False)(nn.relu(nn.Dense(width)(x)))
        return nn.Dense(8)(x)


def train_step(state: TrainState, batch: dict[str, jax.Array], key: jax.Array) -> Any:
    def loss_fn(params: Any, part: dict[str, jax.Array], key: jax.Array) -> Any:
        logits = state.apply_fn({"params": params}, part["x"], rngs={"dropout": key})
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, part["y"])
        return losses.mean(), {"loss": losses.sum(), "correct": (logits.argmax(-1) == part["y"]).sum()}

    def one(i: jax.Array, carry: Any) -> Any:
        grads, metrics = carry
        part = jax.tree.map(lambda t: jax.lax.dynamic_slice_in_dim(t, i * size, size), batch)
        (_, found), g = jax.value_and_grad(loss_fn, has_aux=True)(state.params, part, jax.random.fold_in(key, i))
        return jax.tree.map(jnp.add, grads, g), jax.tree.map(jnp.add, metrics, found)

    size = batch["x"].shape[0] // PARTS
    zeros = jax.tree.map(jnp.zeros_like, state.params)
    grads, metrics = jax.lax.fori_loop(0, PARTS, one, (zeros, {"loss": 0.0, "correct": 0}))
    return state.apply_gradients(grads=jax.tree.map(lambda g: g / PARTS, grads)), metrics


def case() -> Case:
    model = Net()
    params = model.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, jnp.zeros((1, 16)))["params"]
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(1e-2, eps=1e-5))
    batches = []
    for i in range(2):
        a, b = jax.random.split(jax.random.key(i))
        batch = {"x": jax.random.normal(a, (16, 16)), "y": jax.random.randint(b, (16,), 0, 8)}
        batches.append((batch, jax.random.key(i)))
    return Case(train_step, (state,), batches, donate=(0,), rtol=1e-3)
