"""A deep learning recommendation model and its training step, in Flax linen and Optax.

Ordinary single-device code: 26 embedding tables, two small towers and a dot product of every pair of features (Naumov
et al. 2019, arXiv 1906.00091). `mlperf` has the tables, towers and optimizer of MLPerf's training reference
(mlcommons/training, recommendation_v2) with the dot interaction of its first version; `mlperf-1m` cuts tables at a
million rows; `kaggle` is the paper's model of Criteo's Kaggle data. Gradients of tables are dense, as plain JAX makes
them.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
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
class DLRMConfig:
    """A table of `table_rows[i]` rows, but `max_rows` at most, for each categorical feature; towers by layer widths.

    The last width of `bottom` is that of the embeddings; `top` ends in one logit, which it does not list. `dtype` is
    the compute type; parameters and the loss are float32.
    """

    table_rows: tuple[int, ...]
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    dense_features: int = 13
    max_rows: int = 2**31 - 1
    dtype: str = "float32"
    learning_rate: float = 0.01

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of every table."""
        return tuple(min(count, self.max_rows) for count in self.table_rows)

    @property
    def embed(self) -> int:
        """Width of an embedding."""
        return self.bottom[-1]

    @property
    def pairs(self) -> int:
        """Pairs of different features, the bottom tower's result among them."""
        features = len(self.table_rows) + 1
        return features * (features - 1) // 2

    def num_params(self) -> int:
        """Number of trained scalars: tables, and a kernel and a bias for each layer of the towers."""

        def tower(sizes: Sequence[int]) -> int:
            return sum((fan_in + 1) * fan_out for fan_in, fan_out in itertools.pairwise(sizes))

        towers = tower([self.dense_features, *self.bottom]) + tower([self.embed + self.pairs, *self.top, 1])
        return sum(self.rows) * self.embed + towers


_TERABYTE_ROWS = (
    *(40000000, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 40000000, 3067956, 405282, 10),
    *(2209, 11938, 155, 4, 976, 14, 40000000, 40000000, 40000000, 590152, 12973, 108, 36),
)
_KAGGLE_ROWS = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)
_MLPERF = DLRMConfig(_TERABYTE_ROWS, bottom=(512, 256, 128), top=(1024, 1024, 512, 256), learning_rate=0.005)
PRESETS: dict[str, DLRMConfig] = {
    "tiny": DLRMConfig((4096, 512, 40, 3), bottom=(32, 16), top=(32, 16), learning_rate=0.1),
    "kaggle": DLRMConfig(_KAGGLE_ROWS, bottom=(512, 256, 64, 16), top=(512, 256)),
    "mlperf-1m": dataclasses.replace(_MLPERF, max_rows=1_000_000),
    "mlperf": _MLPERF,
}
BATCH: dict[str, int] = {"tiny": 64, "kaggle": 16384, "mlperf-1m": 65536, "mlperf": 65536}  # 65,536 is MLPerf's


class DLRM(nn.Module):
    """Numbers float32[B, dense_features] and categories int32[B, tables] to logits float32[B]."""

    config: DLRMConfig

    @nn.compact
    def __call__(self, dense: jax.Array, categories: jax.Array) -> jax.Array:
        cfg = self.config
        x = dense
        for index, width in enumerate(cfg.bottom):
            x = nn.relu(nn.Dense(width, dtype=cfg.dtype, name=f"bottom_{index}")(x))
        features = [x]
        for index, rows in enumerate(cfg.rows):
            init = nn.initializers.uniform(2 * rows**-0.5)
            table = nn.Embed(rows, cfg.embed, dtype=cfg.dtype, embedding_init=init, name=f"table_{index}")
            features.append(table(categories[:, index]))
        stacked = jnp.stack(features, axis=1)
        products = jnp.einsum("bid,bjd->bij", stacked, stacked)
        first, second = np.tril_indices(len(features), -1)
        x = jnp.concatenate([x, products[:, first, second]], axis=1)
        for index, width in enumerate(cfg.top):
            x = nn.relu(nn.Dense(width, dtype=cfg.dtype, name=f"top_{index}")(x))
        return nn.Dense(1, name="logit")(x.astype(jnp.float32))[:, 0]


def make_train_step(
    config: DLRMConfig,
) -> tuple[Callable[[jax.Array], TrainState], Callable[[TrainState, Batch], tuple[TrainState, Metrics]]]:
    """Build `init_fn(key) -> state` and `train_step(state, batch) -> (state, metrics)`.

    `batch` has `dense` float32[B, dense_features], `categories` int32[B, tables] and `clicked` float32[B], 0 or 1. The
    optimizer is Adagrad.
    """
    model = DLRM(config)
    tx = optax.adagrad(config.learning_rate)

    def init_fn(key: jax.Array) -> TrainState:
        categories = jnp.zeros((1, len(config.rows)), jnp.int32)
        params = model.init(key, jnp.zeros((1, config.dense_features)), categories)["params"]
        return TrainState.create(apply_fn=model.apply, params=params, tx=tx)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        def loss_fn(params: Any) -> tuple[jax.Array, jax.Array]:
            logits = state.apply_fn({"params": params}, batch["dense"], batch["categories"])
            return optax.sigmoid_binary_cross_entropy(logits, batch["clicked"]).mean(), logits

        (loss, logits), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        accuracy = ((logits > 0) == (batch["clicked"] > 0.5)).mean()
        return state.apply_gradients(grads=grads), {"loss": loss, "accuracy": accuracy}

    return init_fn, train_step


def example_batch(config: DLRMConfig, batch_size: int, seed: int = 0) -> dict[str, Any]:
    """Random host arrays; `clicked` is a fixed function of the numbers in `dense`."""
    rng = np.random.default_rng(seed)
    dense = rng.standard_normal((batch_size, config.dense_features), dtype=np.float32)
    categories = [rng.integers(rows, size=batch_size, dtype=np.int32) for rows in config.rows]
    return {
        "dense": dense,
        "categories": np.stack(categories, axis=1),
        "clicked": (dense.sum(axis=1) > 0).astype(np.float32),
    }


def abstract_inputs(config: DLRMConfig, batch_size: int) -> tuple[TrainState, Any]:
    """Shapes and types of `(state, batch)` as `jax.ShapeDtypeStruct`s: no parameter is ever materialised."""
    state = jax.eval_shape(make_train_step(config)[0], jax.random.key(0))
    batch = {
        "dense": jax.ShapeDtypeStruct((batch_size, config.dense_features), jnp.float32),
        "categories": jax.ShapeDtypeStruct((batch_size, len(config.rows)), jnp.int32),
        "clicked": jax.ShapeDtypeStruct((batch_size,), jnp.float32),
    }
    return state, batch
