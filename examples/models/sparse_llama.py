"""Llama with experts, and its training step, in Flax linen: what Qwen3, GPT-OSS and DeepSeek-V3 are made of.

Ordinary single-device code: the layers of `llama`, whose networks are experts, all with one hidden width, chosen by the
`chosen` best gates of each token, and `shared` ones that take every token. Every expert takes equally many tokens of a
sequence, and others pass by it. With ranks, queries, keys and values are made by way of narrow projections, as in
DeepSeek-V2 (arXiv 2405.04434). Sizes are of the models' public configurations.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.training.train_state import TrainState

from examples.models import attention, products, stacking
from examples.models.llama import Batch, Metrics, example_batch, rotate, train_step_of
from examples.models.moe import dispatch_by_sort

__all__ = ["BATCH", "PRESETS", "SparseLlamaConfig", "abstract_inputs", "example_batch", "make_train_step"]


@dataclasses.dataclass(frozen=True, slots=True)
class SparseLlamaConfig:
    """`layers` layers, the first `dense` of which have one network of width `hidden`, the others `experts` of `expert`.

    `head` is the size of a head. `query_rank` and `key_rank` are the widths of narrow projections, 0 for none; heads
    then have `rotated` more entries, and only these know positions. Other fields are those of `llama`.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    head: int
    hidden: int
    vocab: int
    seq_len: int
    experts: int
    chosen: int
    expert: int
    shared: int = 0
    dense: int = 0
    query_rank: int = 0
    key_rank: int = 0
    rotated: int = 0
    rope_theta: float = 10000.0
    dtype: str = "bfloat16"
    remat: bool = False
    scan: bool = False
    saved: str = ""
    recomputed: int = 0
    attention: str = "xla"
    products: str = ""
    learning_rate: float = 3e-4
    weight_decay: float = 0.1
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        attention.check(self.attention)
        products.check(self.products)

    def num_params(self) -> int:
        """Number of trained scalars: embedding and output layer; attention, networks, gates and norms of each layer."""
        d, wide = self.width, self.heads * self.head
        if self.key_rank:
            q, k, turned = self.query_rank, self.key_rank, self.rotated
            attention = d * q + q + q * (wide + self.heads * turned) + d * (k + turned) + k + k * 2 * wide + wide * d
        else:
            attention = 2 * d * wide + 2 * d * self.kv_heads * self.head
        routed = d * self.experts + 3 * d * self.expert * (self.experts + self.shared)
        networks = self.dense * 3 * d * self.hidden + (self.layers - self.dense) * routed
        return 2 * self.vocab * d + self.layers * (attention + 2 * d) + networks + d


PRESETS: dict[str, SparseLlamaConfig] = {
    "tiny": SparseLlamaConfig(
        3, 64, 4, 2, head=16, hidden=128, vocab=256, seq_len=64, experts=8, chosen=2, expert=32, shared=1, dense=1,
        dtype="float32", learning_rate=3e-3,
    ),
    "qwen3-30b": SparseLlamaConfig(
        48, 2048, 32, 4, head=128, hidden=6144, vocab=151936, seq_len=4096, experts=128, chosen=8, expert=768
    ),
    "deepseek-v3": SparseLlamaConfig(
        61, 7168, 128, 128, head=128, hidden=18432, vocab=129280, seq_len=4096, experts=256, chosen=8, expert=2048,
        shared=1, dense=3, query_rank=1536, key_rank=512, rotated=64,
    ),
}  # fmt: skip
# The papers' batches are thousands of sequences, in micro-batches; these are what few devices take of them.
BATCH: dict[str, int] = {"tiny": 16, "qwen3-30b": 512, "deepseek-v3": 4096}


def _dense(config: SparseLlamaConfig) -> Callable[..., nn.Dense]:
    init = nn.initializers.normal(0.02)
    product = products.dot_general(config.products)
    return functools.partial(nn.Dense, use_bias=False, dtype=config.dtype, kernel_init=init, dot_general=product)


class Attention(nn.Module):
    """Causal attention over [B, S, width]."""

    config: SparseLlamaConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        cfg = self.config
        batch, length, _ = x.shape
        dense = _dense(cfg)
        query, key, value = self.narrow(x, dense) if cfg.key_rank else self.plain(x, dense)
        attend = attention.fused if cfg.attention == "cudnn" else jax.nn.dot_product_attention
        # A kernel has heads of one size.
        padded = jnp.pad(value, ((0, 0), (0, 0), (0, 0), (0, query.shape[-1] - cfg.head))) if cfg.key_rank else value
        mixed = attend(query, key, padded, is_causal=True)[..., : cfg.head]
        return dense(cfg.width, name="out")(mixed.reshape(batch, length, cfg.heads * cfg.head))

    def plain(self, x: jax.Array, dense: Callable[..., nn.Dense]) -> tuple[jax.Array, ...]:
        """Queries, keys and values of [B, S, heads, head], the latter of fewer heads."""
        cfg = self.config
        shape = (*x.shape[:2], -1, cfg.head)
        query = dense(cfg.heads * cfg.head, name="query")(x).reshape(shape)
        key = dense(cfg.kv_heads * cfg.head, name="key")(x).reshape(shape)
        value = dense(cfg.kv_heads * cfg.head, name="value")(x).reshape(shape)
        return rotate(query, cfg.rope_theta), rotate(key, cfg.rope_theta), value

    def narrow(self, x: jax.Array, dense: Callable[..., nn.Dense]) -> tuple[jax.Array, ...]:
        """The same by way of `query_rank` and `key_rank`; keys of all heads share what knows positions."""
        cfg = self.config
        batch, length, _ = x.shape
        norm = functools.partial(nn.RMSNorm, dtype=cfg.dtype)
        query = norm(name="norm_query")(dense(cfg.query_rank, name="query_down")(x))
        query = dense(cfg.heads * (cfg.head + cfg.rotated), name="query_up")(query)
        query = query.reshape(batch, length, cfg.heads, -1)
        turned = dense(cfg.rotated, name="key_turned")(x).reshape(batch, length, 1, cfg.rotated)
        narrow = norm(name="norm_key")(dense(cfg.key_rank, name="key_down")(x))
        key, value = (
            dense(cfg.heads * cfg.head, name=name)(narrow).reshape(batch, length, cfg.heads, cfg.head)
            for name in ("key_up", "value_up")
        )
        plain, own = query[..., : cfg.head], rotate(query[..., cfg.head :], cfg.rope_theta)
        turned = jnp.broadcast_to(rotate(turned, cfg.rope_theta), (batch, length, cfg.heads, cfg.rotated))
        return jnp.concatenate([plain, own], axis=-1), jnp.concatenate([key, turned], axis=-1), value


class SwiGLU(nn.Module):
    """One network for all tokens."""

    config: SparseLlamaConfig
    hidden: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        dense = _dense(self.config)
        hidden = nn.silu(dense(self.hidden, name="gate")(x)) * dense(self.hidden, name="up")(x)
        return dense(self.config.width, name="down")(hidden)


class Experts(nn.Module):
    """Networks that tokens are sent to, and those that all tokens go through."""

    config: SparseLlamaConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        cfg = self.config
        init = nn.initializers.normal(0.02)
        router = self.param("router", init, (cfg.width, cfg.experts))
        shapes = {"gate": (cfg.width, cfg.expert), "up": (cfg.width, cfg.expert), "down": (cfg.expert, cfg.width)}
        weights = {name: self.param(name, init, (cfg.experts, *shape)) for name, shape in shapes.items()}
        gate, up, down = (weights[name].astype(cfg.dtype) for name in shapes)
        product = functools.partial(products.of_experts, cfg.products)

        def run(tokens: jax.Array) -> jax.Array:
            return product(nn.silu(product(tokens, gate)) * product(tokens, up), down)

        gates = nn.softmax(jnp.einsum("gsm,me->gse", x.astype(jnp.float32), router))
        capacity = max(1, -(-x.shape[1] * cfg.chosen // cfg.experts))
        y = dispatch_by_sort(x, gates, capacity, run, cfg.chosen)
        return y + SwiGLU(cfg, cfg.shared * cfg.expert, name="shared")(x) if cfg.shared else y


class Layer(nn.Module):
    """One pre-norm layer, of experts unless `dense`. Returns `(x, None)`, as a scan expects."""

    config: SparseLlamaConfig
    dense: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, None]:
        cfg = self.config
        norm = functools.partial(nn.RMSNorm, dtype=cfg.dtype)
        network = SwiGLU(cfg, cfg.hidden, name="mlp") if self.dense else Experts(cfg, name="experts")
        x = x + Attention(cfg, name="attn")(norm(name="norm_attn")(x))
        return x + network(norm(name="norm_mlp")(x)), None


class SparseLlama(nn.Module):
    """Tokens int32[B, S] to logits [B, S, vocab] in the compute type."""

    config: SparseLlamaConfig

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        cfg = self.config
        init = nn.initializers.normal(0.02)
        x = nn.Embed(cfg.vocab, cfg.width, dtype=cfg.dtype, embedding_init=init, name="embed")(tokens)
        layers = functools.partial(
            stacking.apply_layers, Layer, scan=cfg.scan, remat=cfg.remat, saved=cfg.saved, config=cfg
        )
        x, _ = layers(x, count=cfg.dense, name="dense", dense=True)
        x, _ = layers(x, count=cfg.layers - cfg.dense, name="layer", recomputed=cfg.recomputed)
        x = nn.RMSNorm(dtype=cfg.dtype, name="norm")(x)
        return nn.Dense(cfg.vocab, use_bias=False, dtype=cfg.dtype, kernel_init=init, name="lm_head")(x)


def make_train_step(
    config: SparseLlamaConfig,
) -> tuple[Callable[[jax.Array], TrainState], Callable[[TrainState, Batch], tuple[TrainState, Metrics]]]:
    """Build `init_fn(key) -> state` and `train_step(state, batch) -> (state, metrics)`; as those of `llama`."""
    return train_step_of(SparseLlama(config), config)


def abstract_inputs(config: SparseLlamaConfig, batch_size: int) -> tuple[TrainState, Any]:
    """Shapes and types of `(state, batch)` as `jax.ShapeDtypeStruct`s: no parameter is ever materialised."""
    state = jax.eval_shape(make_train_step(config)[0], jax.random.key(0))
    return state, {"tokens": jax.ShapeDtypeStruct((batch_size, config.seq_len + 1), jnp.int32)}


def stack_layers(params: dict[str, Any], config: SparseLlamaConfig) -> dict[str, Any]:
    """Parameters of the unrolled model as those of the scanned one."""
    return stacking.stack_layers(params, "dense", "layer")
