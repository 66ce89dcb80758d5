"""A multi-layer perceptron classifier and its training step, in Flax linen and Optax.

Ordinary single-device code: the smallest model with the same contract as the others.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

Batch = dict[str, jax.Array]
Metrics = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True, slots=True)
class MLPConfig:
    """`depth` hidden layers of `width` over `features` inputs; `dtype` is the compute type, parameters are float32."""

    features: int
    width: int
    depth: int
    classes: int
    dtype: str = "float32"
    learning_rate: float = 1e-3
    clip_norm: float = 1.0

    def num_params(self) -> int:
        """Number of trained scalars: a kernel and a bias for each layer."""
        sizes = [self.features, *[self.width] * self.depth, self.classes]
        return sum((fan_in + 1) * fan_out for fan_in, fan_out in itertools.pairwise(sizes))


# `wide` has layers too big to replicate cheaply, `deep` many small ones.
PRESETS: dict[str, MLPConfig] = {
    "tiny": MLPConfig(features=32, width=64, depth=2, classes=8, learning_rate=3e-3),
    "wide": MLPConfig(features=1024, width=16384, depth=4, classes=1024, dtype="bfloat16", learning_rate=1e-4),
    "deep": MLPConfig(features=1024, width=1024, depth=32, classes=1024, dtype="bfloat16", learning_rate=1e-4),
}
BATCH: dict[str, int] = {"tiny": 16, "wide": 1024, "deep": 4096}


class MLP(nn.Module):
    """Features [B, features] to logits [B, classes] in the compute type."""

    config: MLPConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        cfg = self.config
        for _ in range(cfg.depth):
            x = nn.relu(nn.Dense(cfg.width, dtype=cfg.dtype)(x))
        return nn.Dense(cfg.classes, dtype=cfg.dtype)(x)


def make_train_step(
    config: MLPConfig,
) -> tuple[Callable[[jax.Array], TrainState], Callable[[TrainState, Batch], tuple[TrainState, Metrics]]]:
    """Build `init_fn(key) -> state` and `train_step(state, batch) -> (state, metrics)`.

    `batch` has `x` float32[B, features] and `y` int32[B].
    """
    model = MLP(config)
    tx = optax.chain(optax.clip_by_global_norm(config.clip_norm), optax.adam(config.learning_rate))

    def init_fn(key: jax.Array) -> TrainState:
        params = model.init(key, jnp.zeros((1, config.features)))["params"]
        return TrainState.create(apply_fn=model.apply, params=params, tx=tx)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        def loss_fn(params: Any) -> jax.Array:
            logits = state.apply_fn({"params": params}, batch["x"]).astype(jnp.float32)
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), {"loss": loss, "grad_norm": optax.tree.norm(grads)}

    return init_fn, train_step


def example_batch(config: MLPConfig, batch_size: int, seed: int = 0) -> dict[str, Any]:
    """Random host arrays: `x` float32[batch_size, features] and labels `y` that are a fixed linear function of it."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch_size, config.features), dtype=np.float32)
    teacher = np.random.default_rng(12345).standard_normal((config.features, config.classes), dtype=np.float32)
    return {"x": x, "y": np.argmax(x @ teacher, axis=-1).astype(np.int32)}


def abstract_inputs(config: MLPConfig, batch_size: int) -> tuple[TrainState, Any]:
    """Shapes and types of `(state, batch)` as `jax.ShapeDtypeStruct`s: no parameter is ever materialised."""
    init_fn, _ = make_train_step(config)
    state = jax.eval_shape(init_fn, jax.random.key(0))
    x = jax.ShapeDtypeStruct((batch_size, config.features), jnp.float32)
    return state, {"x": x, "y": jax.ShapeDtypeStruct((batch_size,), jnp.int32)}
