"""An LSTM language model and its training step, in Equinox and Optax.

Ordinary single-device code. The four gates come from one matrix, and time is a `jax.lax.scan`. `2048-512` and `big`
are LSTM-2048-512 and the two-layer LSTM-8192-1024 of Jozefowicz et al. 2016 (arXiv 1602.02410, table 1: 0.83 and 1.8
billion parameters, most of them in the embedding and the full softmax of 793,471 words, which is rounded up to a
multiple of 128 here); `250m` is a subword model of a size between.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

Batch = dict[str, jax.Array]
Metrics = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True, slots=True)
class LSTMConfig:
    """`layers` layers with `hidden` cells, each projected to `width` (Sak et al. 2014), the width of embeddings too.

    `dtype` is the compute type; parameters and the loss are float32. `remat` recomputes each layer in the backward
    pass; `scan` loops over the layers, around the loop over time.
    """

    layers: int
    width: int
    hidden: int
    vocab: int
    seq_len: int
    dtype: str = "float32"
    remat: bool = False
    scan: bool = False
    learning_rate: float = 0.2
    clip_norm: float = 1.0

    def num_params(self) -> int:
        """Number of trained scalars: embedding, softmax with biases, and each layer's gates and projection."""
        layer = 2 * self.width * 4 * self.hidden + 4 * self.hidden + self.hidden * self.width
        return 2 * self.vocab * self.width + self.vocab + self.layers * layer


PRESETS: dict[str, LSTMConfig] = {
    "tiny": LSTMConfig(layers=2, width=32, hidden=64, vocab=256, seq_len=16, learning_rate=1.0),
    "250m": LSTMConfig(layers=4, width=1280, hidden=3584, vocab=32000, seq_len=128, dtype="bfloat16"),
    "2048-512": LSTMConfig(layers=1, width=512, hidden=2048, vocab=793472, seq_len=20),
    "big": LSTMConfig(layers=2, width=1024, hidden=8192, vocab=793472, seq_len=20),
}
# The paper trains with 128 sequences of 20 words on each GPU.
BATCH: dict[str, int] = {"tiny": 16, "250m": 512, "2048-512": 1024, "big": 1024}


class Layer(eqx.Module):
    """One LSTM layer with a projection: [S, B, width] to the same."""

    input_weight: jax.Array
    state_weight: jax.Array
    bias: jax.Array
    projection: jax.Array

    def __init__(self, config: LSTMConfig, key: jax.Array) -> None:
        keys = jax.random.split(key, 3)
        init = jax.nn.initializers.uniform(2 * 0.05)
        shape = (config.width, 4 * config.hidden)
        self.input_weight = init(keys[0], shape) - 0.05
        self.state_weight = init(keys[1], shape) - 0.05
        # The bias of the forget gate starts at 1, so that cells forget little at first.
        self.bias = jnp.zeros(4 * config.hidden).at[config.hidden : 2 * config.hidden].set(1.0)
        self.projection = init(keys[2], (config.hidden, config.width)) - 0.05

    def __call__(self, inputs: jax.Array) -> jax.Array:
        # The input's part of the gates needs no loop: one product for all steps.
        from_input = inputs @ self.input_weight + self.bias

        def step(carry: tuple[jax.Array, jax.Array], gates: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
            output, cell = carry
            i, f, g, o = jnp.split(gates + output @ self.state_weight, 4, axis=-1)
            cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            output = (jax.nn.sigmoid(o) * jnp.tanh(cell)) @ self.projection
            return (output, cell), output

        batch = inputs.shape[1]
        zeros = (jnp.zeros_like(inputs[0]), jnp.zeros((batch, self.projection.shape[0]), inputs.dtype))
        return jax.lax.scan(step, zeros, from_input)[1]


class LSTM(eqx.Module):
    """Tokens int32[B, S] to logits [B, S, vocab] in the compute type; layers stacked on axis 0 with `config.scan`."""

    embedding: jax.Array
    layers: Any
    softmax: jax.Array
    softmax_bias: jax.Array
    config: LSTMConfig = eqx.field(static=True)

    def __init__(self, config: LSTMConfig, key: jax.Array) -> None:
        first, last, *keys = jax.random.split(key, 2 + config.layers)
        init = jax.nn.initializers.normal(config.width**-0.5)
        self.embedding = init(first, (config.vocab, config.width))
        if config.scan:
            self.layers = eqx.filter_vmap(lambda key: Layer(config, key))(jnp.stack(keys))
        else:
            self.layers = [Layer(config, key) for key in keys]
        self.softmax = init(last, (config.width, config.vocab))
        self.softmax_bias = jnp.zeros(config.vocab)
        self.config = config

    def __call__(self, tokens: jax.Array) -> jax.Array:
        cfg = self.config
        model = jax.tree.map(lambda leaf: leaf.astype(cfg.dtype), self)

        def run(x: jax.Array, layer: Layer) -> tuple[jax.Array, None]:
            return x + layer(x), None

        if cfg.remat:
            run = jax.checkpoint(run, prevent_cse=not cfg.scan)
        x = jnp.swapaxes(model.embedding[tokens], 0, 1)
        if cfg.scan:
            x, _ = jax.lax.scan(run, x, model.layers)
        else:
            for layer in model.layers:
                x, _ = run(x, layer)
        return jnp.swapaxes(x, 0, 1) @ model.softmax + model.softmax_bias


class TrainState(NamedTuple):
    """Steps done, the model (every leaf an array), and Optax's state."""

    step: jax.Array
    params: LSTM
    opt_state: optax.OptState


def make_train_step(
    config: LSTMConfig,
) -> tuple[Callable[[jax.Array], TrainState], Callable[[TrainState, Batch], tuple[TrainState, Metrics]]]:
    """Build `init_fn(key) -> state` and `train_step(state, batch) -> (state, metrics)`.

    `batch["tokens"]` is int32[B, S + 1]. The optimizer is Adagrad, as in the paper.
    """
    tx = optax.chain(optax.clip_by_global_norm(config.clip_norm), optax.adagrad(config.learning_rate))

    def init_fn(key: jax.Array) -> TrainState:
        model = LSTM(config, key)
        return TrainState(jnp.zeros((), jnp.int32), model, tx.init(model))

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        inputs, targets = batch["tokens"][:, :-1], batch["tokens"][:, 1:]

        def loss_fn(model: LSTM) -> jax.Array:
            logits = model(inputs).astype(jnp.float32)
            return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        updates, opt_state = tx.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = {"loss": loss, "grad_norm": optax.tree.norm(grads)}
        return TrainState(state.step + 1, params, opt_state), metrics

    return init_fn, train_step


def example_batch(config: LSTMConfig, batch_size: int, seed: int = 0) -> dict[str, Any]:
    """Random tokens int32[batch_size, seq_len + 1], as a host array."""
    shape = (batch_size, config.seq_len + 1)
    return {"tokens": np.random.default_rng(seed).integers(config.vocab, size=shape, dtype=np.int32)}


def abstract_inputs(config: LSTMConfig, batch_size: int) -> tuple[TrainState, Any]:
    """Shapes and types of `(state, batch)` as `jax.ShapeDtypeStruct`s: no parameter is ever materialised."""
    state = jax.eval_shape(make_train_step(config)[0], jax.random.key(0))
    return state, {"tokens": jax.ShapeDtypeStruct((batch_size, config.seq_len + 1), jnp.int32)}


def stack_layers(params: LSTM, config: LSTMConfig) -> LSTM:
    """The unrolled model as the scanned one, with its layers stacked on axis 0."""
    layers = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params.layers)
    scanned = jax.eval_shape(lambda key: LSTM(dataclasses.replace(config, scan=True), key), jax.random.key(0))
    leaves = jax.tree.leaves((params.embedding, layers, params.softmax, params.softmax_bias))
    return jax.tree.unflatten(jax.tree.structure(scanned), leaves)
