"""A vision transformer classifier and its training step, in Flax NNX and Optax.

Ordinary single-device code. Architecture and sizes are those of Dosovitskiy et al. 2020 (arXiv 2010.11929, table 1),
for images of 224 pixels and 1,000 classes; each has the parameters of the published checkpoints.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from examples.models import attention

Batch = dict[str, jax.Array]
Metrics = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True, slots=True)
class ViTConfig:
    """Architecture and training options; the hidden layer is `hidden` wide, by default four times the model's width.

    `image` and `patch` are sizes in pixels. `dtype` is the compute type; parameters, optimizer state and the loss are
    float32. `remat` recomputes each layer in the backward pass; `scan` runs the layers as one loop over stacked
    parameters. `attention` is "xla" (products and a softmax) or "cudnn" (one kernel).
    """

    layers: int
    width: int
    heads: int
    patch: int
    image: int = 224
    classes: int = 1000
    dtype: str = "bfloat16"
    remat: bool = False
    scan: bool = False
    attention: str = "xla"
    hidden: int = 0
    learning_rate: float = 1e-3
    weight_decay: float = 0.1
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        attention.check(self.attention)

    @property
    def tokens(self) -> int:
        """Patches of an image, and the class token."""
        return (self.image // self.patch) ** 2 + 1

    @property
    def inner(self) -> int:
        """Width of the hidden layers."""
        return self.hidden or 4 * self.width

    def num_params(self) -> int:
        """Number of trained scalars: patches, positions, attention and network of each layer, last norm, classifier."""
        d, h = self.width, self.inner
        embeddings = (3 * self.patch**2 + 1) * d + d + self.tokens * d
        layer = 4 * (d + 1) * d + (d + 1) * h + (h + 1) * d + 4 * d
        return embeddings + self.layers * layer + 2 * d + (d + 1) * self.classes


PRESETS: dict[str, ViTConfig] = {
    "tiny": ViTConfig(2, 32, 4, 8, image=32, classes=4, dtype="float32", learning_rate=3e-3),
    "b16": ViTConfig(12, 768, 12, 16),
    "l16": ViTConfig(24, 1024, 16, 16),
    "h14": ViTConfig(32, 1280, 16, 14),
}
BATCH: dict[str, int] = {"tiny": 16, "b16": 4096, "l16": 4096, "h14": 4096}  # the paper's


def by_kernel(query: jax.Array, key: jax.Array, value: jax.Array, **_: Any) -> jax.Array:
    """Attention of [B, T, heads, d] by one kernel, as `nnx.MultiHeadAttention` calls it."""
    count = query.shape[1]
    if count % 2 == 0:
        return attention.fused(query, key, value)
    # With the class token the number of tokens is odd, for which cuDNN has no gradients: one more, which nobody sees.
    query, key, value = (jnp.pad(x, ((0, 0), (0, 1), (0, 0), (0, 0))) for x in (query, key, value))
    lengths = jnp.full(query.shape[:1], count, jnp.int32)
    return attention.fused(query, key, value, key_value_seq_lengths=lengths)[:, :count]


class Block(nnx.Module):
    """One pre-norm layer over [B, T, d]."""

    def __init__(self, config: ViTConfig, rngs: nnx.Rngs) -> None:
        d, dtype = config.width, jnp.dtype(config.dtype)
        self.norm_1 = nnx.LayerNorm(d, dtype=dtype, rngs=rngs)
        attend = by_kernel if config.attention == "cudnn" else nnx.dot_product_attention
        self.attn = nnx.MultiHeadAttention(
            config.heads, d, dtype=dtype, decode=False, keep_rngs=False, attention_fn=attend, rngs=rngs
        )
        self.norm_2 = nnx.LayerNorm(d, dtype=dtype, rngs=rngs)
        self.up = nnx.Linear(d, config.inner, dtype=dtype, rngs=rngs)
        self.down = nnx.Linear(config.inner, d, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attn(self.norm_1(x))
        return x + self.down(nnx.gelu(self.up(self.norm_2(x))))


def run_block(x: jax.Array, block: Block) -> jax.Array:
    """`block(x)`, in the form that remat and scan take."""
    return block(x)


class ViT(nnx.Module):
    """Images [B, image, image, 3] to logits [B, classes] in the compute type."""

    def __init__(self, config: ViTConfig, rngs: nnx.Rngs) -> None:
        d, dtype = config.width, jnp.dtype(config.dtype)
        size = (config.patch, config.patch)
        self.config = config
        self.patches = nnx.Conv(3, d, size, strides=size, padding="VALID", dtype=dtype, rngs=rngs)
        self.class_token = nnx.Param(jnp.zeros((1, 1, d)))
        self.positions = nnx.Param(0.02 * jax.random.normal(rngs.params(), (1, config.tokens, d)))
        if config.scan:

            @nnx.split_rngs(splits=config.layers)
            @nnx.vmap
            def stacked(rngs: nnx.Rngs) -> Block:
                return Block(config, rngs)

            self.blocks = stacked(rngs)
        else:
            self.blocks = nnx.List([Block(config, rngs) for _ in range(config.layers)])
        self.norm = nnx.LayerNorm(d, dtype=dtype, rngs=rngs)
        self.head = nnx.Linear(d, config.classes, dtype=dtype, kernel_init=nnx.initializers.zeros_init(), rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        cfg = self.config
        x = self.patches(images.astype(cfg.dtype)).reshape(images.shape[0], -1, cfg.width)
        first = jnp.broadcast_to(self.class_token[...].astype(cfg.dtype), (x.shape[0], 1, cfg.width))
        x = jnp.concatenate([first, x], axis=1) + self.positions[...].astype(cfg.dtype)
        run = nnx.remat(run_block, prevent_cse=not cfg.scan) if cfg.remat else run_block
        if cfg.scan:
            x = nnx.scan(run, in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(x, self.blocks)
        else:
            for block in self.blocks:
                x = run(x, block)
        return self.head(self.norm(x)[:, 0])


class TrainState(NamedTuple):
    """Steps done, the model's parameters, and Optax's state."""

    step: jax.Array
    params: Any
    opt_state: optax.OptState


def make_train_step(
    config: ViTConfig,
) -> tuple[Callable[[jax.Array], TrainState], Callable[[TrainState, Batch], tuple[TrainState, Metrics]]]:
    """Build `init_fn(key) -> state` and `train_step(state, batch) -> (state, metrics)`.

    `batch` has `x` float32[B, image, image, 3] and `y` int32[B]. The optimizer is AdamW.
    """
    graph = nnx.split(nnx.eval_shape(lambda: ViT(config, nnx.Rngs(0))))[0]
    tx = optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.adamw(config.learning_rate, weight_decay=config.weight_decay),
    )

    def init_fn(key: jax.Array) -> TrainState:
        params = nnx.state(ViT(config, nnx.Rngs(params=key)))
        return TrainState(jnp.zeros((), jnp.int32), params, tx.init(params))

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        def loss_fn(params: Any) -> tuple[jax.Array, jax.Array]:
            logits = nnx.merge(graph, params)(batch["x"]).astype(jnp.float32)
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean(), logits

        (loss, logits), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        updates, opt_state = tx.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        accuracy = (jnp.argmax(logits, axis=-1) == batch["y"]).mean()
        return TrainState(state.step + 1, params, opt_state), {"loss": loss, "accuracy": accuracy}

    return init_fn, train_step


def example_batch(config: ViTConfig, batch_size: int, seed: int = 0) -> dict[str, Any]:
    """Random host arrays: images `x` float32[batch_size, H, W, 3] whose mean colour depends on the label `y` int32."""
    rng = np.random.default_rng(seed)
    y = rng.integers(config.classes, size=batch_size, dtype=np.int32)
    colours = np.random.default_rng(12345).standard_normal((config.classes, 1, 1, 3), dtype=np.float32)
    noise = rng.standard_normal((batch_size, config.image, config.image, 3), dtype=np.float32)
    return {"x": noise + colours[y], "y": y}


def abstract_inputs(config: ViTConfig, batch_size: int) -> tuple[TrainState, Any]:
    """Shapes and types of `(state, batch)` as `jax.ShapeDtypeStruct`s: no parameter is ever materialised."""
    state = jax.eval_shape(make_train_step(config)[0], jax.random.key(0))
    x = jax.ShapeDtypeStruct((batch_size, config.image, config.image, 3), jnp.float32)
    return state, {"x": x, "y": jax.ShapeDtypeStruct((batch_size,), jnp.int32)}


def stack_layers(params: Any, config: ViTConfig) -> Any:
    """Parameters of the unrolled model as those of the scanned one."""
    pure = nnx.to_pure_dict(params)
    layers = [pure["blocks"][index] for index in range(config.layers)]
    pure["blocks"] = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
    scanned = make_train_step(dataclasses.replace(config, scan=True))[0]
    state = jax.eval_shape(scanned, jax.random.key(0)).params
    nnx.replace_by_pure_dict(state, pure)
    return state
