"""A Llama language model and its training step, in Flax linen and Optax.

Ordinary single-device code: RMSNorm, rotary positions, grouped queries and SwiGLU. Sizes are those of Llama 2 (Touvron
et al. 2023, arXiv 2307.09288) and Llama 3 (Grattafiori et al. 2024, arXiv 2407.21783) as their published configurations
give them; each has exactly the published number of parameters.
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
class LlamaConfig:
    """`heads` query heads share `kv_heads` heads of keys and values; `hidden` is the width inside SwiGLU.

    `fused` makes keys and values with one matrix, and SwiGLU's gate and up with another. `dtype` is the compute type;
    parameters, optimizer state and the loss are float32. `remat` recomputes each layer in the backward pass; `scan`
    runs the layers as one loop over stacked parameters. `attention` is "xla" (products and a softmax) or "cudnn" (one
    kernel). `gated` False leaves the gate out: two matrices with a squared ReLU. `saved` and `recomputed` say what
    `remat` keeps, as of `stacking.apply_layers`. `products` "f8" rounds the operands of dense layers to eight bits.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    vocab: int
    seq_len: int
    rope_theta: float = 10000.0
    norm_epsilon: float = 1e-5
    fused: bool = False
    dtype: str = "bfloat16"
    remat: bool = False
    scan: bool = False
    attention: str = "xla"
    gated: bool = True
    saved: str = ""
    recomputed: int = 0
    products: str = ""
    learning_rate: float = 3e-4
    weight_decay: float = 0.1
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        attention.check(self.attention)
        products.check(self.products)

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.width // self.heads

    def num_params(self) -> int:
        """Number of trained scalars: embedding and output layer, and for each layer attention, SwiGLU and two norms."""
        d = self.width
        attention = 2 * d * d + 2 * d * self.kv_heads * self.head_dim
        network = (3 if self.gated else 2) * d * self.hidden
        return 2 * self.vocab * d + self.layers * (attention + network + 2 * d) + d


PRESETS: dict[str, LlamaConfig] = {
    "tiny": LlamaConfig(2, 64, 4, 2, hidden=128, vocab=256, seq_len=64, dtype="float32", learning_rate=3e-3),
    "llama2-7b": LlamaConfig(32, 4096, 32, 32, hidden=11008, vocab=32000, seq_len=4096),
    "llama3-8b": LlamaConfig(32, 4096, 32, 8, hidden=14336, vocab=128256, seq_len=8192, rope_theta=500000.0),
    "llama2-70b": LlamaConfig(80, 8192, 64, 8, hidden=28672, vocab=32000, seq_len=4096, learning_rate=1.5e-4),
}
# Both papers train with 4 M tokens in a batch (Llama 3 at first): 1,024 sequences of 4,096. A quarter of that for the
# small ones is what a few hosts take.
BATCH: dict[str, int] = {"tiny": 16, "llama2-7b": 256, "llama3-8b": 128, "llama2-70b": 1024}


def rotate(x: jax.Array, theta: float) -> jax.Array:
    """Rotary positions (Su et al. 2021, arXiv 2104.09864) of [B, S, H, D]: pairs (i, i + D/2) turn with position."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None] * frequencies
    cos, sin = jnp.cos(angles)[:, None, :], jnp.sin(angles)[:, None, :]
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


def dense_of(config: LlamaConfig) -> Callable[..., nn.Dense]:
    """The dense layers of a block, by their width and name: without biases."""
    return functools.partial(
        nn.Dense,
        use_bias=False,
        dtype=config.dtype,
        kernel_init=nn.initializers.normal(0.02),
        dot_general=products.dot_general(config.products),
    )


class Attention(nn.Module):
    """Causal attention with grouped queries over [B, S, width]."""

    config: LlamaConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        cfg = self.config
        batch, length, _ = x.shape
        groups = cfg.heads // cfg.kv_heads
        dense = dense_of(cfg)
        kv_width = cfg.kv_heads * cfg.head_dim
        query = dense(cfg.width, name="query")(x)
        if cfg.fused:
            key, value = jnp.split(dense(2 * kv_width, name="kv")(x), 2, axis=-1)
        else:
            key, value = dense(kv_width, name="key")(x), dense(kv_width, name="value")(x)
        query = rotate(query.reshape(batch, length, cfg.heads, cfg.head_dim), cfg.rope_theta)
        key = rotate(key.reshape(batch, length, cfg.kv_heads, cfg.head_dim), cfg.rope_theta)
        value = value.reshape(batch, length, cfg.kv_heads, cfg.head_dim)

        if cfg.attention == "cudnn":
            mixed = attention.fused(query, key, value, is_causal=True)
        else:
            query = query.reshape(batch, length, cfg.kv_heads, groups, cfg.head_dim)
            scores = jnp.einsum("bqhgd,bkhd->bhgqk", query, key).astype(jnp.float32) / cfg.head_dim**0.5
            causal = jnp.tril(jnp.ones((length, length), dtype=bool))
            weights = nn.softmax(jnp.where(causal, scores, jnp.finfo(jnp.float32).min)).astype(cfg.dtype)
            mixed = jnp.einsum("bhgqk,bkhd->bqhgd", weights, value)
        return dense(cfg.width, name="out")(mixed.reshape(batch, length, cfg.width))


class SwiGLU(nn.Module):
    """The feed-forward network: a gated hidden layer."""

    config: LlamaConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        cfg = self.config
        dense = dense_of(cfg)
        if not cfg.gated:
            return dense(cfg.width, name="down")(jnp.square(nn.relu(dense(cfg.hidden, name="up")(x))))
        if cfg.fused:
            gate, up = jnp.split(dense(2 * cfg.hidden, name="gate_up")(x), 2, axis=-1)
        else:
            gate, up = dense(cfg.hidden, name="gate")(x), dense(cfg.hidden, name="up")(x)
        return dense(cfg.width, name="down")(nn.silu(gate) * up)


class Layer(nn.Module):
    """One pre-norm layer. Returns `(x, None)`, the carry and output that a scan expects."""

    config: LlamaConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, None]:
        cfg = self.config
        norm = functools.partial(nn.RMSNorm, epsilon=cfg.norm_epsilon, dtype=cfg.dtype)
        x = x + Attention(cfg, name="attn")(norm(name="norm_attn")(x))
        return x + SwiGLU(cfg, name="mlp")(norm(name="norm_mlp")(x)), None


class Llama(nn.Module):
    """Decoder-only transformer: tokens int32[B, S] to logits [B, S, vocab] in the compute type."""

    config: LlamaConfig

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        cfg = self.config
        init = nn.initializers.normal(0.02)
        x = nn.Embed(cfg.vocab, cfg.width, dtype=cfg.dtype, embedding_init=init, name="embed")(tokens)
        x, _ = stacking.apply_layers(
            Layer,
            x,
            count=cfg.layers,
            name="layer",
            scan=cfg.scan,
            remat=cfg.remat,
            saved=cfg.saved,
            recomputed=cfg.recomputed,
            config=cfg,
        )
        x = nn.RMSNorm(epsilon=cfg.norm_epsilon, dtype=cfg.dtype, name="norm")(x)
        return nn.Dense(cfg.vocab, use_bias=False, dtype=cfg.dtype, kernel_init=init, name="lm_head")(x)


def make_train_step(
    config: LlamaConfig,
) -> tuple[Callable[[jax.Array], TrainState], Callable[[TrainState, Batch], tuple[TrainState, Metrics]]]:
    """Build `init_fn(key) -> state` and `train_step(state, batch) -> (state, metrics)`.

    `batch["tokens"]` is int32[B, S + 1]. The optimizer is AdamW; weight decay leaves the norms alone.
    """
    return train_step_of(Llama(config), config)


def train_step_of(
    model: nn.Module, config: Any
) -> tuple[Callable[[jax.Array], TrainState], Callable[[TrainState, Batch], tuple[TrainState, Metrics]]]:
    """The same of any model from tokens to logits; `config` has the rates and the length of a sequence."""

    def decayed(params: Any) -> Any:
        # By name and not by rank: a scan gives the norms one more dimension.
        return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key != "scale", params)

    tx = optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.adamw(config.learning_rate, b2=0.95, weight_decay=config.weight_decay, mask=decayed),
    )

    def init_fn(key: jax.Array) -> TrainState:
        params = model.init(key, jnp.zeros((1, config.seq_len), jnp.int32))["params"]
        return TrainState.create(apply_fn=model.apply, params=params, tx=tx)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        inputs, targets = batch["tokens"][:, :-1], batch["tokens"][:, 1:]

        def loss_fn(params: Any) -> jax.Array:
            logits = state.apply_fn({"params": params}, inputs).astype(jnp.float32)
            return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), {"loss": loss, "grad_norm": optax.tree.norm(grads)}

    return init_fn, train_step


def example_batch(config: LlamaConfig, batch_size: int, seed: int = 0) -> dict[str, Any]:
    """Random tokens int32[batch_size, seq_len + 1], as a host array."""
    shape = (batch_size, config.seq_len + 1)
    return {"tokens": np.random.default_rng(seed).integers(config.vocab, size=shape, dtype=np.int32)}


def abstract_inputs(config: LlamaConfig, batch_size: int) -> tuple[TrainState, Any]:
    """Shapes and types of `(state, batch)` as `jax.ShapeDtypeStruct`s: no parameter is ever materialised."""
    state = jax.eval_shape(make_train_step(config)[0], jax.random.key(0))
    return state, {"tokens": jax.ShapeDtypeStruct((batch_size, config.seq_len + 1), jnp.int32)}


def stack_layers(params: dict[str, Any], config: LlamaConfig) -> dict[str, Any]:
    """Parameters of the unrolled model as those of the scanned one."""
    return stacking.stack_layers(params, "layer")
