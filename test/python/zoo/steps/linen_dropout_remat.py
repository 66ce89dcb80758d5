"""Linen: dropout in scanned layers that are computed again (`nn.remat` in `nn.scan`), a key for each layer."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import optax
from flax.training.train_state import TrainState

from zoo.harness import About, Case

ABOUT = About("Linen", "dropout in nn.scan of nn.remat layers, keys split by layer")


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, _: None) -> tuple[jax.Array, None]:
        h = nn.relu(nn.Dense(64)(nn.LayerNorm()(x)))
        h = nn.Dense(32)(nn.Dropout(0.2, deterministic=False)(h))
        return x + nn.Dropout(0.1, deterministic=False)(h), None


class Net(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
        layers = nn.scan(
            nn.remat(Layer, policy=policy, prevent_cse=False),
            variable_axes={"params": 0}, split_rngs={"params": True, "dropout": True}, length=4,
        )  # fmt: skip
        x, _ = layers()(nn.Dense(32)(x), None)
        return nn.Dense(8)(x)


def train_step(state: TrainState, x: jax.Array, y: jax.Array, key: jax.Array) -> Any:
    def loss_fn(params: Any) -> jax.Array:
        logits = state.apply_fn({"params": params}, x, rngs={"dropout": jax.random.fold_in(key, state.step)})
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


def case() -> Case:
    model = Net()
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    params = model.init(keys, jax.numpy.zeros((1, 16)))["params"]
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(1e-2, eps=1e-5))
    batches = []
    for i in range(2):
        a, b = jax.random.split(jax.random.key(i))
        batch = jax.random.normal(a, (16, 16)), jax.random.randint(b, (16,), 0, 8), jax.random.key(5)
        batches.append(batch)
    return Case(train_step, (state,), batches, donate=(0,), rtol=1e-3)
