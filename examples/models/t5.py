"""A T5 encoder-decoder and its training step, in Flax linen and Optax.

Ordinary single-device code. Architecture and sizes are those of Raffel et al. 2019 (arXiv 1910.10683), version 1.0:
RMSNorm, no biases, ReLU, one embedding for both sides and the output, and relative positions as a bias that all layers
of a side share. The optimizer is Adafactor, as in the paper.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

from examples.models import attention, products, stacking

Batch = dict[str, jax.Array]
Metrics = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True, slots=True)
class T5Config:
    """`layers` layers on each side, `heads` heads of `head_dim`, feed-forward networks of width `hidden`.

    `seq_len` is the length of the input and `target_len` that of the target. `dtype` is the compute type; parameters,
    optimizer state and the loss are float32. `remat` recomputes each layer in the backward pass; `scan` runs each side
    as one loop over stacked parameters. `attention` is "xla" (products and a softmax) or "cudnn" (one kernel). `gated`
    is the network of T5 1.1 (Shazeer 2020, arXiv 2002.05202): a GELU gate beside the hidden layer. `products` "f8"
    rounds the operands of dense layers to eight bits.
    """

    layers: int
    width: int
    heads: int
    head_dim: int
    hidden: int
    vocab: int = 32128
    seq_len: int = 512
    target_len: int = 512
    buckets: int = 32
    max_distance: int = 128
    dtype: str = "bfloat16"
    remat: bool = False
    scan: bool = False
    attention: str = "xla"
    gated: bool = False
    products: str = ""
    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        attention.check(self.attention)
        products.check(self.products)

    def num_params(self) -> int:
        """Number of trained scalars: the embedding, position biases, and each layer's attention, network and norms."""
        d = self.width
        attention = 4 * d * self.heads * self.head_dim + d
        network = (3 if self.gated else 2) * d * self.hidden + d
        sides = self.layers * (attention + network) + self.layers * (2 * attention + network)
        return self.vocab * d + sides + 2 * (self.buckets * self.heads + d)


PRESETS: dict[str, T5Config] = {
    "tiny": T5Config(2, 32, 4, 8, hidden=64, vocab=128, seq_len=16, target_len=8, dtype="float32", learning_rate=0.03),
    "small": T5Config(6, 512, 8, 64, hidden=2048),
    "base": T5Config(12, 768, 12, 64, hidden=3072),
    "large": T5Config(24, 1024, 16, 64, hidden=4096),
    "3b": T5Config(24, 1024, 32, 128, hidden=16384),
}
# The paper trains with 128 sequences, and for longer with 2,048.
BATCH: dict[str, int] = dict.fromkeys(PRESETS, 128) | {"tiny": 16}


def relative_buckets(queries: int, keys: int, both_ways: bool, buckets: int, max_distance: int) -> jax.Array:
    """Bucket of every pair of positions, int32[queries, keys]: near distances one by one, far ones logarithmically."""
    distance = jnp.arange(keys)[None, :] - jnp.arange(queries)[:, None]
    offset = jnp.zeros_like(distance)
    if both_ways:
        buckets //= 2
        offset = (distance > 0) * buckets
        distance = jnp.abs(distance)
    else:
        distance = jnp.maximum(-distance, 0)
    exact = buckets // 2
    far = jnp.log(jnp.maximum(distance, 1) / exact) / np.log(max_distance / exact) * (buckets - exact)
    far = jnp.minimum(exact + far.astype(jnp.int32), buckets - 1)
    return offset + jnp.where(distance < exact, distance, far)


class PositionBias(nn.Module):
    """The learned bias of relative positions: [1, heads, queries, keys] in the compute type."""

    config: T5Config

    @nn.compact
    def __call__(self, queries: int, keys: int, both_ways: bool) -> jax.Array:
        cfg = self.config
        table = self.param("table", nn.initializers.normal(cfg.width**-0.5), (cfg.buckets, cfg.heads))
        bias = table[relative_buckets(queries, keys, both_ways, cfg.buckets, cfg.max_distance)]
        return jnp.moveaxis(bias, -1, 0)[None].astype(cfg.dtype)


class Attention(nn.Module):
    """Multi-head attention of [B, Q, d] to [B, K, d] with a bias [1, heads, Q, K] or none; not scaled, as in T5."""

    config: T5Config

    @nn.compact
    def __call__(self, x: jax.Array, source: jax.Array, bias: jax.Array | None) -> jax.Array:
        cfg = self.config
        heads = (cfg.heads, cfg.head_dim)

        dense = functools.partial(
            nn.DenseGeneral, use_bias=False, dtype=cfg.dtype, dot_general=products.dot_general(cfg.products)
        )

        def project(name: str, value: jax.Array, deviation: float) -> jax.Array:
            return dense(heads, kernel_init=nn.initializers.normal(deviation), name=name)(value)

        query = project("query", x, (cfg.width * cfg.head_dim) ** -0.5)
        key, value = project("key", source, cfg.width**-0.5), project("value", source, cfg.width**-0.5)
        if cfg.attention == "cudnn":
            mixed = attention.fused(query, key, value, bias=bias, scale=1.0)
        else:
            scores = jnp.einsum("bqhd,bkhd->bhqk", query, key).astype(jnp.float32)
            scores = scores if bias is None else scores + bias.astype(jnp.float32)
            mixed = jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores).astype(cfg.dtype), value)
        init = nn.initializers.normal((cfg.heads * cfg.head_dim) ** -0.5)
        return dense(cfg.width, axis=(-2, -1), kernel_init=init, name="out")(mixed)


class Network(nn.Module):
    """The feed-forward network of a layer."""

    config: T5Config

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        cfg = self.config
        dense = functools.partial(
            nn.Dense, use_bias=False, dtype=cfg.dtype, dot_general=products.dot_general(cfg.products)
        )
        init = nn.initializers.normal(cfg.width**-0.5)
        hidden = dense(cfg.hidden, kernel_init=init, name="up")(x)
        gate = nn.gelu(dense(cfg.hidden, kernel_init=init, name="gate")(x)) if cfg.gated else None
        hidden = nn.relu(hidden) if gate is None else gate * hidden
        return dense(cfg.width, kernel_init=nn.initializers.normal(cfg.hidden**-0.5), name="down")(hidden)


class EncoderLayer(nn.Module):
    """Self-attention and network, both pre-norm. Returns `(x, None)`, as a scan expects."""

    config: T5Config

    @nn.compact
    def __call__(self, x: jax.Array, bias: jax.Array) -> tuple[jax.Array, None]:
        cfg = self.config
        norm = functools.partial(nn.RMSNorm, dtype=cfg.dtype)
        y = norm(name="norm_attn")(x)
        x = x + Attention(cfg, name="attn")(y, y, bias)
        return x + Network(cfg, name="mlp")(norm(name="norm_mlp")(x)), None


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the encoder's result, and network. Returns `(x, None)`, as a scan expects."""

    config: T5Config

    @nn.compact
    def __call__(self, x: jax.Array, bias: jax.Array, encoded: jax.Array) -> tuple[jax.Array, None]:
        cfg = self.config
        norm = functools.partial(nn.RMSNorm, dtype=cfg.dtype)
        y = norm(name="norm_attn")(x)
        x = x + Attention(cfg, name="attn")(y, y, bias)
        x = x + Attention(cfg, name="cross")(norm(name="norm_cross")(x), encoded, None)
        return x + Network(cfg, name="mlp")(norm(name="norm_mlp")(x)), None


class T5(nn.Module):
    """Inputs int32[B, S] and shifted targets int32[B, T] to logits [B, T, vocab] in the compute type."""

    config: T5Config

    @nn.compact
    def __call__(self, inputs: jax.Array, targets: jax.Array) -> jax.Array:
        cfg = self.config
        init = nn.initializers.normal(1.0)
        embed = nn.Embed(cfg.vocab, cfg.width, dtype=cfg.dtype, embedding_init=init, name="embed")
        layers = functools.partial(stacking.apply_layers, count=cfg.layers, scan=cfg.scan, remat=cfg.remat, config=cfg)
        source, target = inputs.shape[1], targets.shape[1]
        bias = PositionBias(cfg, name="encoder_bias")(source, source, True)
        encoded, _ = layers(EncoderLayer, embed(inputs), bias, name="encoder")
        encoded = nn.RMSNorm(dtype=cfg.dtype, name="encoder_norm")(encoded)

        causal = jnp.tril(jnp.ones((target, target), dtype=bool))
        bias = PositionBias(cfg, name="decoder_bias")(target, target, False)
        bias = jnp.where(causal, bias, jnp.finfo(bias.dtype).min)
        x, _ = layers(DecoderLayer, embed(targets), bias, encoded, name="decoder")
        x = nn.RMSNorm(dtype=cfg.dtype, name="decoder_norm")(x)
        # The tied output layer is scaled down, because the embedding has unit variance.
        return embed.attend(x * cfg.width**-0.5)


def make_train_step(
    config: T5Config,
) -> tuple[Callable[[jax.Array], TrainState], Callable[[TrainState, Batch], tuple[TrainState, Metrics]]]:
    """Build `init_fn(key) -> state` and `train_step(state, batch) -> (state, metrics)`.

    `batch` has `inputs` int32[B, seq_len] and `targets` int32[B, target_len]; the decoder starts from token 0.
    """
    model = T5(config)
    tx = optax.adafactor(config.learning_rate, multiply_by_parameter_scale=False)

    def init_fn(key: jax.Array) -> TrainState:
        tokens = jnp.zeros((1, config.seq_len), jnp.int32), jnp.zeros((1, config.target_len), jnp.int32)
        return TrainState.create(apply_fn=model.apply, params=model.init(key, *tokens)["params"], tx=tx)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        shifted = jnp.pad(batch["targets"][:, :-1], ((0, 0), (1, 0)))

        def loss_fn(params: Any) -> jax.Array:
            logits = state.apply_fn({"params": params}, batch["inputs"], shifted).astype(jnp.float32)
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"]).mean()

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), {"loss": loss, "grad_norm": optax.tree.norm(grads)}

    return init_fn, train_step


def example_batch(config: T5Config, batch_size: int, seed: int = 0) -> dict[str, Any]:
    """Random tokens as host arrays: `inputs` int32[batch_size, seq_len], `targets` int32[batch_size, target_len]."""
    rng = np.random.default_rng(seed)
    lengths = {"inputs": config.seq_len, "targets": config.target_len}
    return {name: rng.integers(config.vocab, size=(batch_size, size), dtype=np.int32) for name, size in lengths.items()}


def abstract_inputs(config: T5Config, batch_size: int) -> tuple[TrainState, Any]:
    """Shapes and types of `(state, batch)` as `jax.ShapeDtypeStruct`s: no parameter is ever materialised."""
    state = jax.eval_shape(make_train_step(config)[0], jax.random.key(0))
    lengths = {"inputs": config.seq_len, "targets": config.target_len}
    return state, {name: jax.ShapeDtypeStruct((batch_size, size), jnp.int32) for name, size in lengths.items()}


def stack_layers(params: dict[str, Any], config: T5Config) -> dict[str, Any]:
    """Parameters of the unrolled model as those of the scanned one."""
    return stacking.stack_layers(params, "encoder", "decoder")
