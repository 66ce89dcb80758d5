"""A GPT language model and its training step, in Flax linen and Optax.

Ordinary single-device code: it owns the architecture, the loss and the optimizer, and knows nothing of devices.
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
class GPTConfig:
    """Architecture and training options of a GPT.

    `seq_len` is the longest sequence (the size of the position table). `dtype` is the compute type ("float32" or
    "bfloat16"); parameters, optimizer state and the loss are always float32. `remat` recomputes each block in the
    backward pass; `scan` runs the layers as one loop over stacked parameters; `fused` makes query, key and value with
    one matrix. `attention` is "xla" (products and a softmax) or "cudnn" (one kernel, without dropout of its weights).
    `saved` and `recomputed` say what `remat` keeps, as of `stacking.apply_layers`; `remat_scores` recomputes scores and
    their softmax only. `products` "f8" rounds the operands of dense layers to eight bits.
    """

    layers: int
    width: int
    heads: int
    vocab: int
    seq_len: int
    tied: bool = True
    dtype: str = "bfloat16"
    remat: bool = False
    scan: bool = False
    fused: bool = False
    attention: str = "xla"
    saved: str = ""
    recomputed: int = 0
    remat_scores: bool = False
    products: str = ""
    dropout: float = 0.0
    learning_rate: float = 3e-4
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        attention.check(self.attention)
        products.check(self.products)
        if self.dropout and self.attention == "cudnn":
            raise ValueError("attention 'cudnn' has no dropout: set dropout to 0, or attention to 'xla'")

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.width // self.heads

    def num_params(self) -> int:
        """Number of trained scalars, in closed form: embeddings, 12 d^2 + 13 d for each layer, the last LayerNorm."""
        d = self.width
        embeddings = (self.vocab * (1 if self.tied else 2) + self.seq_len) * d
        return embeddings + self.layers * (12 * d * d + 13 * d) + 2 * d


def _alpa(layers: int, width: int, heads: int, learning_rate: float) -> GPTConfig:
    """One row of Alpa's table: sequences of 1,024 tokens, 51,200 words."""
    return GPTConfig(layers, width, heads, vocab=51200, seq_len=1024, learning_rate=learning_rate)


# Sizes after Brown et al. 2020 (arXiv 2005.14165) table 2.1; 1.3b has 16 heads of 128, 2.6b is Megatron-style.
# 350m, 15b and 39b are as in the GPT table of Alpa (Zheng et al. 2022, arXiv 2201.12023, table 5 and its suite).
PRESETS: dict[str, GPTConfig] = {
    "tiny": GPTConfig(layers=2, width=64, heads=4, vocab=256, seq_len=64, dtype="float32", learning_rate=3e-3),
    "10m": GPTConfig(layers=6, width=384, heads=8, vocab=256, seq_len=256, dtype="float32", learning_rate=1e-3),
    "125m": GPTConfig(layers=12, width=768, heads=12, vocab=50304, seq_len=2048, learning_rate=6e-4),
    "350m": _alpa(24, 1024, 16, learning_rate=3e-4),
    "1.3b": GPTConfig(layers=24, width=2048, heads=16, vocab=50304, seq_len=2048, learning_rate=2e-4),
    "2.6b": GPTConfig(layers=32, width=2560, heads=32, vocab=50304, seq_len=2048, learning_rate=1.6e-4),
    "6.7b": GPTConfig(layers=32, width=4096, heads=32, vocab=50304, seq_len=2048, learning_rate=1.2e-4),
    "15b": _alpa(48, 5120, 40, learning_rate=1e-4),
    "39b": _alpa(48, 8192, 64, learning_rate=0.8e-4),
    "175b": GPTConfig(layers=96, width=12288, heads=96, vocab=50304, seq_len=2048, learning_rate=0.6e-4),
}
# Sequences of a step. GPT-3 has 0.5 M to 3.2 M tokens in a batch and Alpa 1,024 sequences, both in micro-batches; the
# smaller ones here are what that leaves for a host or two.
BATCH: dict[str, int] = {
    "tiny": 16,
    "10m": 16,
    "125m": 64,
    "350m": 64,
    "1.3b": 64,
    "2.6b": 128,
    "6.7b": 128,
    "15b": 256,
    "39b": 512,
    "175b": 1536,
}


class CausalSelfAttention(nn.Module):
    """Multi-head attention in which a position sees itself and the positions before it."""

    config: GPTConfig
    deterministic: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        cfg = self.config
        init = nn.initializers.normal(0.02)
        out_init = nn.initializers.normal(0.02 / (2 * cfg.layers) ** 0.5)
        dense = functools.partial(nn.DenseGeneral, dtype=cfg.dtype, dot_general=products.dot_general(cfg.products))

        def project(name: str) -> jax.Array:
            return dense((cfg.heads, cfg.head_dim), kernel_init=init, name=name)(x)

        if cfg.fused:
            qkv = dense(3 * cfg.width, kernel_init=init, name="qkv")(x)
            heads = (*x.shape[:2], cfg.heads, cfg.head_dim)
            query, key, value = (part.reshape(heads) for part in jnp.split(qkv, 3, axis=-1))
        else:
            query, key, value = project("query"), project("key"), project("value")
        if cfg.attention == "cudnn":
            mixed = attention.fused(query, key, value, is_causal=True)
        else:
            attend = CausalSelfAttention.attend
            if cfg.remat_scores:
                attend = nn.remat(attend, prevent_cse=not cfg.scan)
            mixed = attend(self, query, key, value)
        return dense(cfg.width, axis=(-2, -1), kernel_init=out_init, name="out")(mixed)

    def attend(self, query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        """Attention of [B, S, heads, head_dim] with dropout of its weights."""
        cfg = self.config
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / cfg.head_dim**0.5
        causal = nn.make_causal_mask(jnp.ones(query.shape[:2]), dtype=bool)
        scores = jnp.where(causal, scores.astype(jnp.float32), jnp.finfo(jnp.float32).min)
        weights = nn.softmax(scores).astype(cfg.dtype)
        weights = nn.Dropout(cfg.dropout, deterministic=self.deterministic)(weights)
        return jnp.einsum("bhqk,bkhd->bqhd", weights, value)


class MLP(nn.Module):
    """The two dense layers of a block, with a GELU between them."""

    config: GPTConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        cfg = self.config
        out_init = nn.initializers.normal(0.02 / (2 * cfg.layers) ** 0.5)
        dense = functools.partial(nn.Dense, dtype=cfg.dtype, dot_general=products.dot_general(cfg.products))
        x = dense(4 * cfg.width, kernel_init=nn.initializers.normal(0.02), name="up")(x)
        x = nn.gelu(x)
        return dense(cfg.width, kernel_init=out_init, name="down")(x)


class Block(nn.Module):
    """One pre-LayerNorm transformer layer. Returns `(x, None)`, the carry and output that `nn.scan` expects."""

    config: GPTConfig
    deterministic: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, None]:
        cfg = self.config
        drop = nn.Dropout(cfg.dropout, deterministic=self.deterministic)
        h = nn.LayerNorm(dtype=cfg.dtype, name="ln_1")(x)
        x = x + drop(CausalSelfAttention(cfg, self.deterministic, name="attn")(h))
        h = nn.LayerNorm(dtype=cfg.dtype, name="ln_2")(x)
        x = x + drop(MLP(cfg, name="mlp")(h))
        return x, None


class GPT(nn.Module):
    """Decoder-only transformer: tokens int32[B, S] to logits [B, S, vocab] in the compute type."""

    config: GPTConfig

    @nn.compact
    def __call__(self, tokens: jax.Array, deterministic: bool = True) -> jax.Array:
        cfg = self.config
        init = nn.initializers.normal(0.02)
        wte = nn.Embed(cfg.vocab, cfg.width, dtype=cfg.dtype, embedding_init=init, name="wte")
        wpe = self.param("wpe", init, (cfg.seq_len, cfg.width))
        x = wte(tokens) + wpe[: tokens.shape[1]].astype(cfg.dtype)
        x = nn.Dropout(cfg.dropout, deterministic=deterministic)(x)

        x, _ = stacking.apply_layers(
            Block,
            x,
            count=cfg.layers,
            name="h",
            scan=cfg.scan,
            remat=cfg.remat,
            saved=cfg.saved,
            recomputed=cfg.recomputed,
            config=cfg,
            deterministic=deterministic,
        )
        x = nn.LayerNorm(dtype=cfg.dtype, name="ln_f")(x)
        if cfg.tied:
            return wte.attend(x)
        return nn.Dense(cfg.vocab, use_bias=False, dtype=cfg.dtype, kernel_init=init, name="lm_head")(x)


def next_token_loss(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Mean cross entropy in float32 (nats per token) of logits [B, S, vocab] against targets int32[B, S]."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), targets)
    return losses.mean()


def make_train_step(
    config: GPTConfig,
) -> tuple[Callable[[jax.Array], TrainState], Callable[[TrainState, Batch], tuple[TrainState, Metrics]]]:
    """Build `init_fn(key) -> state` and `train_step(state, batch) -> (state, metrics)`.

    `batch["tokens"]` is int32[B, S + 1]; the inputs are its first S columns and the targets its last S.
    """
    model = GPT(config)
    tx = optax.chain(optax.clip_by_global_norm(config.clip_norm), optax.adam(config.learning_rate, b2=0.95))

    def init_fn(key: jax.Array) -> TrainState:
        params = model.init(key, jnp.zeros((1, config.seq_len), jnp.int32))["params"]
        return TrainState.create(apply_fn=model.apply, params=params, tx=tx)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        inputs, targets = batch["tokens"][:, :-1], batch["tokens"][:, 1:]
        rngs = {"dropout": jax.random.fold_in(jax.random.key(0), state.step)} if config.dropout else None

        def loss_fn(params: Any) -> jax.Array:
            logits = state.apply_fn({"params": params}, inputs, deterministic=not config.dropout, rngs=rngs)
            return next_token_loss(logits, targets)

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        metrics = {"loss": loss, "grad_norm": optax.tree.norm(grads)}
        return state.apply_gradients(grads=grads), metrics

    return init_fn, train_step


def make_eval_step(config: GPTConfig) -> Callable[[TrainState, Batch], Metrics]:
    """Build `eval_step(state, batch) -> metrics`: the loss and the accuracy of the next token, without dropout."""
    model = GPT(config)

    def eval_step(state: TrainState, batch: Batch) -> Metrics:
        inputs, targets = batch["tokens"][:, :-1], batch["tokens"][:, 1:]
        logits = model.apply({"params": state.params}, inputs)
        hits = jnp.argmax(logits, axis=-1) == targets
        return {"loss": next_token_loss(logits, targets), "accuracy": hits.mean()}

    return eval_step


def example_batch(config: GPTConfig, batch_size: int, seq_len: int | None = None, seed: int = 0) -> dict[str, Any]:
    """Random tokens int32[batch_size, seq_len + 1], as a host array; `seq_len` defaults to the longest."""
    shape = (batch_size, (seq_len or config.seq_len) + 1)
    return {"tokens": np.random.default_rng(seed).integers(config.vocab, size=shape, dtype=np.int32)}


def abstract_inputs(config: GPTConfig, batch_size: int, seq_len: int | None = None) -> tuple[TrainState, Any]:
    """Shapes and types of `(state, batch)` as `jax.ShapeDtypeStruct`s: no parameter is ever materialised."""
    init_fn, _ = make_train_step(config)
    state = jax.eval_shape(init_fn, jax.random.key(0))
    tokens = jax.ShapeDtypeStruct((batch_size, (seq_len or config.seq_len) + 1), jnp.int32)
    return state, {"tokens": tokens}


def stack_layers(params: dict[str, Any], config: GPTConfig) -> dict[str, Any]:
    """Parameters of the unrolled model (`h_0`, `h_1`, ...) as those of the scanned one (`h`, layers on axis 0)."""
    layers = [params[f"h_{i}"] for i in range(config.layers)]
    rest = {name: value for name, value in params.items() if not name.startswith("h_")}
    return rest | {"h": jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)}
