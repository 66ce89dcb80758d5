"""A mixture-of-experts language model and its training step, in Flax linen and Optax.

Ordinary single-device code. Every other layer has experts, chosen by top-2 gating with a capacity per group of tokens
as in Lepikhin et al. 2020 (arXiv 2006.16668), whose dispatch and combination are one-hot einsums; `routing="sort"`
computes the same by sorting tokens by expert and scattering them. `routing="ragged"` has no capacity: each expert takes
all tokens that chose it, by `jax.lax.ragged_dot`. Sizes are those of the MoE table in Alpa (Zheng et al. 2022, arXiv
2201.12023, and its open benchmark suite), whose feed-forward layers are 8 times as wide as the model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

from examples.models import attention, stacking

Batch = dict[str, jax.Array]
Metrics = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True, slots=True)
class MoEConfig:
    """`layers` (even) layers, alternately of `experts` experts and dense; experts compete within `group` tokens.

    An expert takes `2 * group / experts * capacity_factor` tokens of a group; others pass by it. `routing` is "einsum",
    "sort" or "ragged". `dtype` is the compute type; parameters, gating and the loss are float32. `remat` recomputes
    each pair of layers in the backward pass; `scan` runs the pairs as one loop over stacked parameters. `attention` is
    "xla" (products and a softmax) or "cudnn" (one kernel). `optimizer` is "adam" or "adafactor", whose state is a row
    and a column for each matrix: what the largest models are trained with.
    """

    layers: int
    width: int
    heads: int
    experts: int
    group: int
    vocab: int
    seq_len: int
    routing: str = "einsum"
    capacity_factor: float = 1.0
    balance_weight: float = 0.01
    dtype: str = "bfloat16"
    remat: bool = False
    scan: bool = False
    attention: str = "xla"
    learning_rate: float = 3e-4
    clip_norm: float = 1.0
    optimizer: str = "adam"

    def __post_init__(self) -> None:
        attention.check(self.attention)
        if self.routing not in ("einsum", "sort", "ragged"):
            raise ValueError(f"routing is {self.routing!r}; it must be 'einsum', 'sort' or 'ragged'")
        if self.optimizer not in ("adam", "adafactor"):
            raise ValueError(f"optimizer is {self.optimizer!r}; it must be 'adam' or 'adafactor'")

    @property
    def hidden(self) -> int:
        """Width of the hidden layer of a feed-forward network and of an expert."""
        return 8 * self.width

    @property
    def capacity(self) -> int:
        """Tokens of one group that an expert takes."""
        return max(1, int(2 * self.group * self.capacity_factor) // self.experts)

    def num_params(self) -> int:
        """Number of trained scalars: tied embeddings, positions, attention, experts, and dense layers."""
        d, h = self.width, self.hidden
        attention = 4 * d * d + 4 * d + 2 * d
        expert_layer = attention + 2 * d + d * self.experts + 2 * self.experts * d * h
        dense_layer = attention + 2 * d + 2 * d * h + h + d
        return (self.vocab + self.seq_len) * d + self.layers // 2 * (expert_layer + dense_layer) + 2 * d


def _alpa(width: int, layers: int, experts: int) -> MoEConfig:
    """One row of Alpa's table: 16 heads, groups of 2,048 tokens, 32,000 words, sequences of 1,024."""
    return MoEConfig(layers, width, heads=16, experts=experts, group=2048, vocab=32000, seq_len=1024)


PRESETS: dict[str, MoEConfig] = {
    "tiny": MoEConfig(2, 32, 4, 4, group=64, vocab=256, seq_len=32, dtype="float32", learning_rate=3e-3),
    "380m": _alpa(768, 8, 8),
    "690m": _alpa(768, 8, 16),
    "1.3b": _alpa(768, 16, 16),
    "2.4b": _alpa(1024, 16, 16),
    "10b": _alpa(1536, 16, 32),
    "27b": _alpa(2048, 16, 48),
    "70b": _alpa(2048, 32, 64),
}
# Alpa trains with 1,024 sequences in micro-batches; these are a quarter of it, two sequences to a group.
BATCH: dict[str, int] = dict.fromkeys(PRESETS, 256) | {"tiny": 8, "380m": 64, "690m": 64, "1.3b": 128}


def top2(gates: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The two best experts of each token and their weights."""
    return best_experts(gates, 2)


def best_experts(gates: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """The best experts of each token and their weights: gates [G, S, E] to int32 and float32 [count, G, S].

    The weights of a token add up to 1.
    """
    weights, experts = jax.lax.top_k(gates, count)
    weights = weights / weights.sum(axis=-1, keepdims=True)
    return jnp.moveaxis(experts, -1, 0), jnp.moveaxis(weights, -1, 0)


def dispatch_by_einsum(x: jax.Array, gates: jax.Array, capacity: int, run: Callable[[jax.Array], jax.Array]) -> Any:
    """Send tokens [G, S, M] to experts and back with one-hot masks [G, S, E, C]; `run` maps [E, G, C, M] to itself."""
    experts, weights = top2(gates)
    chosen = jax.nn.one_hot(experts, gates.shape[-1], dtype=jnp.int32)
    # A token's place at its expert: first choices before second ones, then the order within the group.
    first, second = jnp.cumsum(chosen, axis=2) - chosen
    second = second + chosen[0].sum(axis=1, keepdims=True)
    combine = jnp.zeros((*gates.shape, capacity), gates.dtype)
    for choice, place, weight in zip(chosen, (first, second), weights, strict=True):
        position = (place * choice).sum(axis=-1)
        # one_hot of a place beyond the capacity is all zeros, which drops the token.
        slots = jax.nn.one_hot(position, capacity, dtype=gates.dtype)
        combine = combine + jnp.einsum("gse,gsc->gsec", choice * weight[..., None], slots)
    dispatch = (combine > 0).astype(x.dtype)
    outputs = run(jnp.einsum("gsec,gsm->egcm", dispatch, x))
    return jnp.einsum("gsec,egcm->gsm", combine.astype(x.dtype), outputs)


def dispatch_by_sort(
    x: jax.Array, gates: jax.Array, capacity: int, run: Callable[[jax.Array], jax.Array], chosen: int = 2
) -> Any:
    """The same as `dispatch_by_einsum`, by sorting the choices of each group by expert and scattering the tokens.

    `chosen` experts take each token.
    """
    groups, size, width = x.shape
    count = gates.shape[-1]
    experts, weights = best_experts(gates, chosen)
    experts, weights = (jnp.moveaxis(a, 0, 1).reshape(groups, chosen * size) for a in (experts, weights))

    def slots_of_group(choices: jax.Array) -> jax.Array:
        order = jnp.argsort(choices, stable=True)
        ordered = choices[order]
        place = jnp.arange(chosen * size) - jnp.searchsorted(ordered, ordered, side="left")
        slots = jnp.where(place < capacity, ordered * capacity + place, count * capacity)
        return jnp.zeros_like(slots).at[order].set(slots)

    slots = jax.vmap(slots_of_group)(experts)
    tokens = jnp.tile(x, (1, chosen, 1))
    buffers = jax.vmap(lambda s, t: jnp.zeros((count * capacity, width), x.dtype).at[s].set(t, mode="drop"))
    sent = buffers(slots, tokens).reshape(groups, count, capacity, width)
    outputs = run(jnp.moveaxis(sent, 1, 0))
    outputs = jnp.moveaxis(outputs, 0, 1).reshape(groups, count * capacity, width)
    taken = jax.vmap(lambda o, s: o.at[s].get(mode="fill", fill_value=0))(outputs, slots)
    taken = taken * weights[..., None].astype(x.dtype)
    return taken.reshape(groups, chosen, size, width).sum(axis=1)


def run_ragged(x: jax.Array, gates: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    """Tokens [G, S, M] through both of their experts, as many as there are of each: tokens sorted by expert."""
    experts, weights = top2(gates)
    tokens = x.reshape(-1, x.shape[-1])
    order = jnp.argsort(experts.reshape(-1), stable=True)
    sizes = jax.nn.one_hot(experts, gates.shape[-1], dtype=jnp.int32).sum(axis=(0, 1, 2))
    hidden = nn.relu(jax.lax.ragged_dot(tokens[order % len(tokens)], up, sizes))
    outputs = jax.lax.ragged_dot(hidden, down, sizes)
    outputs = jnp.zeros_like(outputs).at[order].set(outputs, unique_indices=True)
    weighted = outputs.reshape(2, *x.shape) * weights[..., None].astype(x.dtype)
    return weighted.sum(axis=0)


class Experts(nn.Module):
    """The expert layer: tokens [B, S, M] to the same, and the balance loss, 1 if experts are used equally."""

    config: MoEConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        cfg = self.config
        init = nn.initializers.normal(0.02)
        gate = self.param("gate", init, (cfg.width, cfg.experts))
        up = self.param("up", init, (cfg.experts, cfg.width, cfg.hidden)).astype(cfg.dtype)
        down = self.param("down", init, (cfg.experts, cfg.hidden, cfg.width)).astype(cfg.dtype)

        def run(tokens: jax.Array) -> jax.Array:
            hidden = nn.relu(jnp.einsum("egcm,emh->egch", tokens, up))
            return jnp.einsum("egch,ehm->egcm", hidden, down)

        grouped = x.reshape(-1, min(cfg.group, x.shape[0] * x.shape[1]), cfg.width)
        gates = nn.softmax(jnp.einsum("gsm,me->gse", grouped.astype(jnp.float32), gate))
        # By group, as Lepikhin et al. 2020 (arXiv 2006.16668, algorithm 1): what is routed together is balanced.
        used = jax.nn.one_hot(jnp.argmax(gates, axis=-1), cfg.experts).mean(axis=1)
        balance = cfg.experts * jnp.sum(used * gates.mean(axis=1), axis=-1).mean()
        if cfg.routing == "ragged":
            return run_ragged(grouped, gates, up, down).reshape(x.shape), balance
        dispatch = dispatch_by_einsum if cfg.routing == "einsum" else dispatch_by_sort
        return dispatch(grouped, gates, cfg.capacity, run).reshape(x.shape), balance


class Attention(nn.Module):
    """Causal multi-head attention over [B, S, M]."""

    config: MoEConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        cfg = self.config
        init = nn.initializers.normal(0.02)

        def project(name: str) -> jax.Array:
            shape = (cfg.heads, cfg.width // cfg.heads)
            return nn.DenseGeneral(shape, dtype=cfg.dtype, kernel_init=init, name=name)(x)

        attend = attention.fused if cfg.attention == "cudnn" else jax.nn.dot_product_attention
        mixed = attend(project("query"), project("key"), project("value"), is_causal=True)
        return nn.DenseGeneral(cfg.width, axis=(-2, -1), dtype=cfg.dtype, kernel_init=init, name="out")(mixed)


class Pair(nn.Module):
    """A layer of experts and a dense layer. Returns `(x, balance loss)`, carry and output of a scan."""

    config: MoEConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        cfg = self.config
        init = nn.initializers.normal(0.02)

        def norm(name: str, x: jax.Array) -> jax.Array:
            return nn.LayerNorm(dtype=cfg.dtype, name=name)(x)

        x = x + Attention(cfg, name="attn_moe")(norm("ln_1", x))
        y, balance = Experts(cfg, name="experts")(norm("ln_2", x))
        x = x + y
        x = x + Attention(cfg, name="attn_dense")(norm("ln_3", x))
        y = nn.relu(nn.Dense(cfg.hidden, dtype=cfg.dtype, kernel_init=init, name="up")(norm("ln_4", x)))
        return x + nn.Dense(cfg.width, dtype=cfg.dtype, kernel_init=init, name="down")(y), balance


class MoE(nn.Module):
    """Decoder-only transformer: tokens int32[B, S] to logits [B, S, vocab], and the mean balance loss."""

    config: MoEConfig

    @nn.compact
    def __call__(self, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        cfg = self.config
        init = nn.initializers.normal(0.02)
        wte = nn.Embed(cfg.vocab, cfg.width, dtype=cfg.dtype, embedding_init=init, name="wte")
        wpe = self.param("wpe", init, (cfg.seq_len, cfg.width))
        x = wte(tokens) + wpe[: tokens.shape[1]].astype(cfg.dtype)
        x, balance = stacking.apply_layers(
            Pair, x, count=cfg.layers // 2, name="pair", scan=cfg.scan, remat=cfg.remat, config=cfg
        )
        return wte.attend(nn.LayerNorm(dtype=cfg.dtype, name="ln_f")(x)), balance.mean()


def make_train_step(
    config: MoEConfig,
) -> tuple[Callable[[jax.Array], TrainState], Callable[[TrainState, Batch], tuple[TrainState, Metrics]]]:
    """Build `init_fn(key) -> state` and `train_step(state, batch) -> (state, metrics)`.

    `batch["tokens"]` is int32[B, S + 1]; `B * S` must be a multiple of `config.group`, or less than it.
    """
    model = MoE(config)
    adam = config.optimizer == "adam"
    update = optax.adam(config.learning_rate, b2=0.95) if adam else optax.adafactor(config.learning_rate)
    tx = optax.chain(optax.clip_by_global_norm(config.clip_norm), update)

    def init_fn(key: jax.Array) -> TrainState:
        params = model.init(key, jnp.zeros((1, config.seq_len), jnp.int32))["params"]
        return TrainState.create(apply_fn=model.apply, params=params, tx=tx)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        inputs, targets = batch["tokens"][:, :-1], batch["tokens"][:, 1:]

        def loss_fn(params: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            logits, balance = state.apply_fn({"params": params}, inputs)
            losses = optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), targets)
            loss = losses.mean()
            return loss + config.balance_weight * balance, (loss, balance)

        (_, (loss, balance)), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        metrics = {"loss": loss, "balance": balance, "grad_norm": optax.tree.norm(grads)}
        return state.apply_gradients(grads=grads), metrics

    return init_fn, train_step


def example_batch(config: MoEConfig, batch_size: int, seed: int = 0) -> dict[str, Any]:
    """Random tokens int32[batch_size, seq_len + 1], as a host array."""
    shape = (batch_size, config.seq_len + 1)
    return {"tokens": np.random.default_rng(seed).integers(config.vocab, size=shape, dtype=np.int32)}


def abstract_inputs(config: MoEConfig, batch_size: int) -> tuple[TrainState, Any]:
    """Shapes and types of `(state, batch)` as `jax.ShapeDtypeStruct`s: no parameter is ever materialised."""
    state = jax.eval_shape(make_train_step(config)[0], jax.random.key(0))
    return state, {"tokens": jax.ShapeDtypeStruct((batch_size, config.seq_len + 1), jnp.int32)}


def stack_layers(params: dict[str, Any], config: MoEConfig) -> dict[str, Any]:
    """Parameters of the unrolled model as those of the scanned one."""
    return stacking.stack_layers(params, "pair")
