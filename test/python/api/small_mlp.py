"""A small model with Adam, written for one device, that the API's tests share."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax.training.train_state import TrainState


class Mlp(nn.Module):
    """Two hidden layers, so that data, tensor and no parallelism all have something to split."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(2):
            x = nn.relu(nn.Dense(256)(x))
        return nn.Dense(16)(x)


# One optimizer for all states: a TrainState holds it in its pytree structure, where another one would be another state.
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))
MODEL = Mlp()


def init(key: jax.Array) -> TrainState:
    params = MODEL.init(key, jnp.zeros((1, 64)))["params"]
    return TrainState.create(apply_fn=MODEL.apply, params=params, tx=OPTIMIZER)


def train_step(state: TrainState, batch: dict[str, jax.Array]) -> tuple[TrainState, dict[str, jax.Array]]:
    def loss_of(params: Any) -> jax.Array:
        return jnp.mean((state.apply_fn({"params": params}, batch["x"]) - batch["y"]) ** 2)

    loss, grads = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=grads), {"loss": loss}


def eval_step(state: TrainState, batch: dict[str, jax.Array]) -> jax.Array:
    return jnp.mean((state.apply_fn({"params": state.params}, batch["x"]) - batch["y"]) ** 2)


def make_batch(size: int = 32, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "x": rng.standard_normal((size, 64), dtype=np.float32),
        "y": rng.standard_normal((size, 16), dtype=np.float32),
    }


def abstract_state() -> TrainState:
    return jax.eval_shape(init, jax.random.key(0))
