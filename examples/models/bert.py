"""A BERT encoder and its masked-language-model training step, in Flax linen and Optax.

Ordinary single-device code. Architecture and sizes are those of Devlin et al. 2018 (arXiv 1810.04805): post-norm
layers, learned positions, a transform before the tied output layer. `base` and `large` have the parameters of the
published uncased checkpoints without pooler and next-sentence head.
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

from examples.models import attention, stacking

Batch = dict[str, jax.Array]
Metrics = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True, slots=True)
class BERTConfig:
    """Architecture and training options; the hidden layer is four times as wide as the model.

    `seq_len` is the longest sequence (the size of the position table). `dtype` is the compute type; parameters,
    optimizer state and the loss are float32. `remat` recomputes each layer in the backward pass; `scan` runs the layers
    as one loop over stacked parameters. `attention` is "xla" (products and a softmax) or "cudnn" (one kernel, for which
    the valid tokens of a sequence must be its first ones). `predicted` is how many tokens of each sequence are
    predicted, at places that the batch names, as in the paper's own code; 0 is all of them.
    """

    layers: int
    width: int
    heads: int
    vocab: int = 30522
    segments: int = 2
    seq_len: int = 512
    dtype: str = "bfloat16"
    remat: bool = False
    scan: bool = False
    attention: str = "xla"
    predicted: int = 0
    learning_rate: float = 1e-4
    weight_decay: float = 0.01
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        attention.check(self.attention)

    def num_params(self) -> int:
        """Number of trained scalars: embeddings, 12 d^2 + 13 d for each layer, the transform and the output biases."""
        d = self.width
        embeddings = (self.vocab + self.seq_len + self.segments + 2) * d
        return embeddings + self.layers * (12 * d * d + 13 * d) + d * d + 3 * d + self.vocab


PRESETS: dict[str, BERTConfig] = {
    "tiny": BERTConfig(2, 32, 4, vocab=128, seq_len=32, dtype="float32", learning_rate=1e-2),
    "base": BERTConfig(12, 768, 12),
    "large": BERTConfig(24, 1024, 16),
}
BATCH: dict[str, int] = {"tiny": 16, "base": 256, "large": 256}  # the paper's


class Layer(nn.Module):
    """One post-norm layer over [B, S, d]. Returns `(x, None)`, the carry and output that a scan expects."""

    config: BERTConfig

    @nn.compact
    def __call__(self, x: jax.Array, valid: jax.Array) -> tuple[jax.Array, None]:
        cfg = self.config
        init = nn.initializers.truncated_normal(0.02)
        dense = functools.partial(nn.Dense, dtype=cfg.dtype, kernel_init=init)
        norm = functools.partial(nn.LayerNorm, epsilon=1e-12, dtype=cfg.dtype)
        attend = functools.partial(
            nn.MultiHeadDotProductAttention, cfg.heads, dtype=cfg.dtype, kernel_init=init, name="attn"
        )
        if cfg.attention == "cudnn":
            lengths = valid.sum(axis=-1, dtype=jnp.int32)

            def kernel(query: jax.Array, key: jax.Array, value: jax.Array, **_: Any) -> jax.Array:
                return attention.fused(query, key, value, key_value_seq_lengths=lengths)

            mixed = attend(attention_fn=kernel)(x)
        else:
            mask = nn.make_attention_mask(valid, valid, dtype=bool)
            mixed = attend(force_fp32_for_softmax=True)(x, mask=mask)
        x = norm(name="norm_attn")(x + mixed)
        hidden = nn.gelu(dense(4 * cfg.width, name="up")(x), approximate=False)
        return norm(name="norm_mlp")(x + dense(cfg.width, name="down")(hidden)), None


class BERT(nn.Module):
    """Tokens, segments int32[B, S] and valid bool[B, S] to logits [B, S, vocab] in the compute type.

    With `places` int32[B, P] the logits are of these positions only, [B, P, vocab].
    """

    config: BERTConfig

    @nn.compact
    def __call__(
        self, tokens: jax.Array, segments: jax.Array, valid: jax.Array, places: jax.Array | None = None
    ) -> jax.Array:
        cfg = self.config
        init = nn.initializers.truncated_normal(0.02)
        embed = functools.partial(nn.Embed, features=cfg.width, dtype=cfg.dtype, embedding_init=init)
        norm = functools.partial(nn.LayerNorm, epsilon=1e-12, dtype=cfg.dtype)
        words = embed(cfg.vocab, name="words")
        positions = jnp.arange(tokens.shape[1])
        x = words(tokens) + embed(cfg.seq_len, name="positions")(positions)
        x = norm(name="norm_embed")(x + embed(cfg.segments, name="segments")(segments))
        x, _ = stacking.apply_layers(
            Layer, x, valid, count=cfg.layers, name="layer", scan=cfg.scan, remat=cfg.remat, config=cfg
        )
        if places is not None:
            x = jnp.take_along_axis(x, places[..., None], axis=1)
        x = nn.Dense(cfg.width, dtype=cfg.dtype, kernel_init=init, name="transform")(x)
        x = norm(name="norm_out")(nn.gelu(x, approximate=False))
        bias = self.param("bias", nn.initializers.zeros_init(), (cfg.vocab,))
        return words.attend(x) + bias.astype(cfg.dtype)


def make_train_step(
    config: BERTConfig,
) -> tuple[Callable[[jax.Array], TrainState], Callable[[TrainState, Batch], tuple[TrainState, Metrics]]]:
    """Build `init_fn(key) -> state` and `train_step(state, batch) -> (state, metrics)`.

    `batch` has `tokens` (some of them masked), `segments`, `targets` int32[B, S], `valid` bool[B, S], and `weights`
    float32[B, S], which is 1 where the target is to be predicted. Where the configuration says how many are
    `predicted`, `targets` and `weights` are [B, predicted], of the positions `places` int32[B, predicted]. The
    optimizer is AdamW; weight decay leaves biases and norms alone.
    """
    model = BERT(config)

    def decayed(params: Any) -> Any:
        return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key in ("kernel", "embedding"), params)

    tx = optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.adamw(config.learning_rate, weight_decay=config.weight_decay, mask=decayed),
    )

    def init_fn(key: jax.Array) -> TrainState:
        tokens = jnp.zeros((1, config.seq_len), jnp.int32)
        params = model.init(key, tokens, tokens, tokens == 0)["params"]
        return TrainState.create(apply_fn=model.apply, params=params, tx=tx)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        def loss_fn(params: Any) -> jax.Array:
            inputs = batch["tokens"], batch["segments"], batch["valid"], batch.get("places")
            logits = state.apply_fn({"params": params}, *inputs)
            losses = optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), batch["targets"])
            return (losses * batch["weights"]).sum() / jnp.maximum(batch["weights"].sum(), 1.0)

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), {"loss": loss, "grad_norm": optax.tree.norm(grads)}

    return init_fn, train_step


def example_batch(config: BERTConfig, batch_size: int, seed: int = 0) -> dict[str, Any]:
    """Host arrays from a seed: random targets, of which about 15 % are masked by the last word of the vocabulary.

    Where the configuration says how many are `predicted`, so many of each sequence are, at sorted places.
    """
    rng = np.random.default_rng(seed)
    shape = (batch_size, config.seq_len)
    targets = rng.integers(config.vocab - 1, size=shape, dtype=np.int32)
    masked = rng.random(shape) < 0.15
    wanted: dict[str, Any] = {"targets": targets, "weights": masked.astype(np.float32)}
    if config.predicted:
        order = np.argsort(rng.random(shape), axis=1)[:, : config.predicted]
        places = np.sort(order, axis=1).astype(np.int32)
        masked = np.zeros(shape, dtype=bool)
        np.put_along_axis(masked, places, True, axis=1)
        chosen = np.take_along_axis(targets, places, axis=1)
        wanted = {"targets": chosen, "weights": np.ones(places.shape, np.float32), "places": places}
    return {
        "tokens": np.where(masked, np.int32(config.vocab - 1), targets),
        "segments": np.broadcast_to(np.arange(config.seq_len, dtype=np.int32) * 2 // config.seq_len, shape).copy(),
        "valid": np.ones(shape, dtype=bool),
    } | wanted


def abstract_inputs(config: BERTConfig, batch_size: int) -> tuple[TrainState, Any]:
    """Shapes and types of `(state, batch)` as `jax.ShapeDtypeStruct`s: no parameter is ever materialised."""
    state = jax.eval_shape(make_train_step(config)[0], jax.random.key(0))
    shape = (batch_size, config.seq_len)
    predicted = (batch_size, config.predicted) if config.predicted else shape
    types = {"tokens": (shape, "int32"), "segments": (shape, "int32"), "targets": (predicted, "int32")}
    types |= {"valid": (shape, "bool"), "weights": (predicted, "float32")}
    if config.predicted:
        types["places"] = (predicted, "int32")
    return state, {name: jax.ShapeDtypeStruct(*given) for name, given in types.items()}


def stack_layers(params: dict[str, Any], config: BERTConfig) -> dict[str, Any]:
    """Parameters of the unrolled model as those of the scanned one."""
    return stacking.stack_layers(params, "layer")
