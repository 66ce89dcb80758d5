"""A CLIP model, two towers under a contrastive loss, and its training step, in Flax linen and Optax.

Ordinary single-device code. Architecture and sizes are those of Radford et al. 2021 (arXiv 2103.00020, table 20) as in
their open code: one matrix makes query, key and value, and the GELU is approximated by a sigmoid; each size has the
parameters of the published checkpoint. Every image is compared with every text of the batch.
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

from examples.models import stacking

Batch = dict[str, jax.Array]
Metrics = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True, slots=True)
class Tower:
    """Size of one transformer; the hidden layer is four times as wide."""

    layers: int
    width: int
    heads: int

    def num_params(self) -> int:
        """Trained scalars of the layers."""
        return self.layers * (12 * self.width**2 + 13 * self.width)


@dataclasses.dataclass(frozen=True, slots=True)
class CLIPConfig:
    """The two towers and the width `embed` of the space they share; `seq_len` is the length of a text.

    `dtype` is the compute type; parameters, optimizer state, similarities and the loss are float32. `remat` recomputes
    each layer in the backward pass; `scan` runs each tower as one loop over stacked parameters.
    """

    vision: Tower
    text: Tower
    embed: int
    patch: int
    image: int = 224
    vocab: int = 49408
    seq_len: int = 77
    dtype: str = "bfloat16"
    remat: bool = False
    scan: bool = False
    learning_rate: float = 5e-4
    weight_decay: float = 0.2

    @property
    def patches(self) -> int:
        """Patches of an image."""
        return (self.image // self.patch) ** 2

    def num_params(self) -> int:
        """Number of trained scalars: both towers with embeddings, norms and projections, and the temperature."""
        v, t = self.vision.width, self.text.width
        vision = 3 * self.patch**2 * v + v + (self.patches + 1) * v + 4 * v + v * self.embed
        text = (self.vocab + self.seq_len) * t + 2 * t + t * self.embed
        return vision + text + self.vision.num_params() + self.text.num_params() + 1


PRESETS: dict[str, CLIPConfig] = {
    "tiny": CLIPConfig(
        vision=Tower(2, 32, 4),
        text=Tower(2, 32, 4),
        embed=32,
        patch=8,
        image=16,
        vocab=64,
        seq_len=8,
        dtype="float32",
        learning_rate=3e-3,
    ),
    "b16": CLIPConfig(Tower(12, 768, 12), Tower(12, 512, 8), embed=512, patch=16),
    "l14": CLIPConfig(Tower(24, 1024, 16), Tower(12, 768, 12), embed=768, patch=14, learning_rate=4e-4),
}
# The paper's batch is 32,768 pairs on 256 to 592 devices; this is an eighth of it.
BATCH: dict[str, int] = {"tiny": 16, "b16": 4096, "l14": 4096}


class Layer(nn.Module):
    """One pre-norm layer over [B, T, d]. Returns `(x, None)`, the carry and output that a scan expects."""

    config: CLIPConfig
    tower: Tower
    causal: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, None]:
        cfg, d = self.config, self.tower.width
        dense = functools.partial(nn.Dense, dtype=cfg.dtype, kernel_init=nn.initializers.normal(d**-0.5))
        norm = functools.partial(nn.LayerNorm, epsilon=1e-5, dtype=cfg.dtype)
        heads = (*x.shape[:2], self.tower.heads, d // self.tower.heads)
        qkv = dense(3 * d, name="qkv")(norm(name="norm_1")(x))
        query, key, value = (part.reshape(heads) for part in jnp.split(qkv, 3, axis=-1))
        mixed = jax.nn.dot_product_attention(query, key, value, is_causal=self.causal).reshape(x.shape)
        x = x + dense(d, name="out")(mixed)
        hidden = dense(4 * d, name="up")(norm(name="norm_2")(x))
        return x + dense(d, name="down")(hidden * nn.sigmoid(1.702 * hidden)), None


class CLIP(nn.Module):
    """Images [B, image, image, 3] and texts int32[B, S] to unit vectors float32[B, embed] of both, and the scale.

    A text ends with the largest token of its row, and what the tower knows there stands for the text.
    """

    config: CLIPConfig

    @nn.compact
    def __call__(self, images: jax.Array, texts: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        cfg = self.config
        v, t = cfg.vision.width, cfg.text.width
        norm = functools.partial(nn.LayerNorm, epsilon=1e-5, dtype=cfg.dtype)
        project = functools.partial(nn.Dense, cfg.embed, use_bias=False, dtype=cfg.dtype)
        layers = functools.partial(stacking.apply_layers, Layer, scan=cfg.scan, remat=cfg.remat, config=cfg)

        size = (cfg.patch, cfg.patch)
        x = nn.Conv(v, size, size, padding="VALID", use_bias=False, dtype=cfg.dtype, name="patches")(images)
        x = x.reshape(x.shape[0], cfg.patches, v)
        first = self.param("class_token", nn.initializers.normal(v**-0.5), (v,)).astype(cfg.dtype)
        x = jnp.concatenate([jnp.broadcast_to(first, (x.shape[0], 1, v)), x], axis=1)
        x = x + self.param("patch_positions", nn.initializers.normal(v**-0.5), (cfg.patches + 1, v)).astype(cfg.dtype)
        x = norm(name="norm_in")(x)
        x, _ = layers(x, count=cfg.vision.layers, name="vision", tower=cfg.vision, causal=False)
        image = project(name="project_image")(norm(name="norm_image")(x[:, 0]))

        init = nn.initializers.normal(0.02)
        y = nn.Embed(cfg.vocab, t, dtype=cfg.dtype, embedding_init=init, name="words")(texts)
        y = y + self.param("word_positions", nn.initializers.normal(0.01), (cfg.seq_len, t)).astype(cfg.dtype)
        y, _ = layers(y, count=cfg.text.layers, name="text", tower=cfg.text, causal=True)
        y = norm(name="norm_text")(y)
        end = jnp.argmax(texts, axis=-1)
        text = project(name="project_text")(jnp.take_along_axis(y, end[:, None, None], axis=1)[:, 0])

        scale = self.param("scale", nn.initializers.constant(np.log(1 / 0.07)), ())
        image, text = image.astype(jnp.float32), text.astype(jnp.float32)
        image = image / jnp.linalg.norm(image, axis=-1, keepdims=True)
        text = text / jnp.linalg.norm(text, axis=-1, keepdims=True)
        return image, text, jnp.exp(jnp.minimum(scale, np.log(100.0)))


def contrastive_loss(image: jax.Array, text: jax.Array, scale: jax.Array) -> jax.Array:
    """Mean cross entropy of picking the right text for each image and the right image for each text, [B, D] both."""
    logits = scale * image @ text.T
    labels = jnp.arange(logits.shape[0])
    by_image = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    return (by_image + optax.softmax_cross_entropy_with_integer_labels(logits.T, labels).mean()) / 2


def make_train_step(
    config: CLIPConfig,
) -> tuple[Callable[[jax.Array], TrainState], Callable[[TrainState, Batch], tuple[TrainState, Metrics]]]:
    """Build `init_fn(key) -> state` and `train_step(state, batch) -> (state, metrics)`.

    `batch` has `images` float32[B, image, image, 3] and `texts` int32[B, seq_len]. The optimizer is AdamW; weight decay
    leaves biases, norms and the scale alone.
    """
    model = CLIP(config)

    def decayed(params: Any) -> Any:
        return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key in ("kernel", "embedding"), params)

    tx = optax.adamw(config.learning_rate, b2=0.98, eps=1e-6, weight_decay=config.weight_decay, mask=decayed)

    def init_fn(key: jax.Array) -> TrainState:
        images = jnp.zeros((1, config.image, config.image, 3))
        params = model.init(key, images, jnp.zeros((1, config.seq_len), jnp.int32))["params"]
        return TrainState.create(apply_fn=model.apply, params=params, tx=tx)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        def loss_fn(params: Any) -> jax.Array:
            return contrastive_loss(*state.apply_fn({"params": params}, batch["images"], batch["texts"]))

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), {"loss": loss, "grad_norm": optax.tree.norm(grads)}

    return init_fn, train_step


def example_batch(config: CLIPConfig, batch_size: int, seed: int = 0) -> dict[str, Any]:
    """Random host arrays: `images` float32[batch_size, H, W, 3] and `texts` int32[batch_size, seq_len]."""
    rng = np.random.default_rng(seed)
    texts = rng.integers(config.vocab - 1, size=(batch_size, config.seq_len), dtype=np.int32)
    texts[:, -1] = config.vocab - 1
    images = rng.standard_normal((batch_size, config.image, config.image, 3), dtype=np.float32)
    return {"images": images, "texts": texts}


def abstract_inputs(config: CLIPConfig, batch_size: int) -> tuple[TrainState, Any]:
    """Shapes and types of `(state, batch)` as `jax.ShapeDtypeStruct`s: no parameter is ever materialised."""
    state = jax.eval_shape(make_train_step(config)[0], jax.random.key(0))
    images = jax.ShapeDtypeStruct((batch_size, config.image, config.image, 3), jnp.float32)
    return state, {"images": images, "texts": jax.ShapeDtypeStruct((batch_size, config.seq_len), jnp.int32)}


def stack_layers(params: dict[str, Any], config: CLIPConfig) -> dict[str, Any]:
    """Parameters of the unrolled model as those of the scanned one."""
    return stacking.stack_layers(params, "vision", "text")
