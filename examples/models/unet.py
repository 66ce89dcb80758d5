"""A diffusion U-Net with skip connections and its training step, in Flax linen and Optax.

Ordinary single-device code. The architecture and the sizes `adm-64` (296 M) and `adm-256` (554 M) are those of Dhariwal
and Nichol 2021 (arXiv 2105.05233, appendix, and the flags of their open code); `adm-64-2x` is the former at twice the
width. The loss is the mean square error of the predicted noise under a cosine schedule (arXiv 2102.09672).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
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
class UNetConfig:
    """Level i works at `image / 2**i` pixels with `width * multiples[i]` channels in `blocks` residual blocks.

    Levels of the sizes in `attention` have self-attention with heads of `head_dim` channels; `classes` is the number of
    labels. `dtype` is the compute type; parameters and the loss are float32. `remat` recomputes each residual block and
    attention in the backward pass. Blocks are never alike in shape and skips, so there is no scanned form.
    """

    image: int
    width: int
    multiples: tuple[int, ...]
    blocks: int
    attention: tuple[int, ...]
    head_dim: int = 64
    norm_groups: int = 32
    classes: int = 1000
    dtype: str = "bfloat16"
    remat: bool = False
    learning_rate: float = 1e-4

    @property
    def embedding(self) -> int:
        """Width of the embedding of time and label."""
        return 4 * self.width

    def num_params(self) -> int:
        """Number of trained scalars: embeddings, the blocks of `plan`, and the convolutions at both ends."""
        e, w = self.embedding, self.width
        total = (w + 1) * e + (e + 1) * e + self.classes * e + (9 * 3 + 1) * w + 2 * w + (9 * w + 1) * 3
        for layer in plan(self):
            c, out = layer.channels_in, layer.channels
            if layer.kind == "attention":
                total += 2 * c + (c + 1) * 3 * c + (c + 1) * c
            else:
                total += 2 * c + (9 * c + 1) * out + (e + 1) * 2 * out + 2 * out + (9 * out + 1) * out
                total += (c + 1) * out if c != out else 0
        return total


@dataclasses.dataclass(frozen=True, slots=True)
class Layer:
    """One layer of the network: `kind` is "block", "down", "up" (residual blocks) or "attention".

    `save` puts the result on the stack of skips; `skip` takes one off it and appends its channels to the input, which
    then has `channels_in`.
    """

    name: str
    kind: str
    channels_in: int
    channels: int
    save: bool = False
    skip: bool = False


def plan(config: UNetConfig) -> Iterator[Layer]:
    """The layers between the first and the last convolution, in order."""
    channels, saved, size = config.width, [config.width], config.image
    last = len(config.multiples) - 1
    for level, multiple in enumerate(config.multiples):
        out = config.width * multiple
        for index in range(config.blocks):
            attend = size in config.attention
            yield Layer(f"down_{level}_{index}", "block", channels, out, save=not attend)
            if attend:
                yield Layer(f"down_{level}_{index}_attn", "attention", out, out, save=True)
            channels = out
            saved.append(out)
        if level < last:
            yield Layer(f"down_{level}_half", "down", out, out, save=True)
            saved.append(out)
            size //= 2
    yield Layer("mid_0", "block", channels, channels)
    yield Layer("mid_attn", "attention", channels, channels)
    yield Layer("mid_1", "block", channels, channels)
    for level, multiple in reversed(list(enumerate(config.multiples))):
        out = config.width * multiple
        for index in range(config.blocks + 1):
            yield Layer(f"up_{level}_{index}", "block", channels + saved.pop(), out, skip=True)
            if size in config.attention:
                yield Layer(f"up_{level}_{index}_attn", "attention", out, out)
            channels = out
        if level > 0:
            yield Layer(f"up_{level}_double", "up", out, out)
            size *= 2


_ADM_64 = UNetConfig(image=64, width=192, multiples=(1, 2, 3, 4), blocks=3, attention=(32, 16, 8), learning_rate=3e-4)
PRESETS: dict[str, UNetConfig] = {
    "tiny": UNetConfig(
        image=16,
        width=16,
        multiples=(1, 2),
        blocks=1,
        attention=(8,),
        head_dim=16,
        norm_groups=8,
        classes=4,
        dtype="float32",
        learning_rate=2e-3,
    ),
    "adm-64": _ADM_64,
    "adm-256": UNetConfig(image=256, width=256, multiples=(1, 1, 2, 2, 4, 4), blocks=2, attention=(32, 16, 8)),
    "adm-64-2x": dataclasses.replace(_ADM_64, width=384, learning_rate=1e-4),
}
# The paper's batches are 2,048 and 256; 256 images of 64 pixels fill a host of eight devices.
BATCH: dict[str, int] = {"tiny": 16, "adm-64": 256, "adm-256": 64, "adm-64-2x": 256}


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions, the second normalised with a scale and shift from the embedding [B, E]."""

    config: UNetConfig
    kind: str
    channels: int

    @nn.compact
    def __call__(self, x: jax.Array, embedding: jax.Array) -> jax.Array:
        cfg = self.config
        norm = functools.partial(nn.GroupNorm, cfg.norm_groups, dtype=cfg.dtype)
        conv = functools.partial(nn.Conv, dtype=cfg.dtype)
        y = nn.silu(norm(name="norm_in")(x))
        if self.kind == "down":
            x, y = (nn.avg_pool(v, (2, 2), (2, 2)) for v in (x, y))
        elif self.kind == "up":
            x, y = (jnp.repeat(jnp.repeat(v, 2, axis=1), 2, axis=2) for v in (x, y))
        y = conv(self.channels, (3, 3), name="conv_in")(y)
        modulation = nn.Dense(2 * self.channels, dtype=cfg.dtype, name="modulation")(nn.silu(embedding))
        scale, shift = jnp.split(modulation[:, None, None, :], 2, axis=-1)
        y = norm(name="norm_out")(y) * (1 + scale) + shift
        y = conv(self.channels, (3, 3), kernel_init=nn.initializers.zeros_init(), name="conv_out")(nn.silu(y))
        if x.shape[-1] != self.channels:
            x = conv(self.channels, (1, 1), name="project")(x)
        return x + y


class Attention(nn.Module):
    """Self-attention over the pixels of [B, H, W, C], with one matrix for query, key and value."""

    config: UNetConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        cfg = self.config
        batch, height, width, channels = x.shape
        y = nn.GroupNorm(cfg.norm_groups, dtype=cfg.dtype, name="norm")(x).reshape(batch, height * width, channels)
        qkv = nn.Dense(3 * channels, dtype=cfg.dtype, name="qkv")(y)
        heads = (batch, height * width, channels // cfg.head_dim, cfg.head_dim)
        query, key, value = (part.reshape(heads) for part in jnp.split(qkv, 3, axis=-1))
        mixed = jax.nn.dot_product_attention(query, key, value).reshape(y.shape)
        out = nn.Dense(channels, dtype=cfg.dtype, kernel_init=nn.initializers.zeros_init(), name="out")(mixed)
        return x + out.reshape(x.shape)


def time_features(time: jax.Array, width: int) -> jax.Array:
    """Sines and cosines of times in [0, 1], float32[B], at geometrically spaced frequencies: [B, width]."""
    frequencies = jnp.exp(-jnp.log(10000.0) * jnp.arange(width // 2) / (width // 2))
    angles = 1000.0 * time[:, None] * frequencies
    return jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1)


class UNet(nn.Module):
    """Noisy images [B, image, image, 3], times float32[B] and labels int32[B] to the noise, float32, of that shape."""

    config: UNetConfig

    @nn.compact
    def __call__(self, x: jax.Array, time: jax.Array, label: jax.Array) -> jax.Array:
        cfg = self.config
        dense = functools.partial(nn.Dense, cfg.embedding, dtype=cfg.dtype)
        embedding = dense(name="time_out")(nn.silu(dense(name="time_in")(time_features(time, cfg.width))))
        embedding = embedding + nn.Embed(cfg.classes, cfg.embedding, dtype=cfg.dtype, name="label")(label)
        x = nn.Conv(cfg.width, (3, 3), dtype=cfg.dtype, name="stem")(x.astype(cfg.dtype))

        block = nn.remat(ResidualBlock) if cfg.remat else ResidualBlock
        attention = nn.remat(Attention) if cfg.remat else Attention
        skips = [x]
        for layer in plan(cfg):
            if layer.skip:
                x = jnp.concatenate([x, skips.pop()], axis=-1)
            if layer.kind == "attention":
                x = attention(cfg, name=layer.name)(x)
            else:
                x = block(cfg, layer.kind, layer.channels, name=layer.name)(x, embedding)
            if layer.save:
                skips.append(x)
        x = nn.silu(nn.GroupNorm(cfg.norm_groups, dtype=cfg.dtype, name="norm_out")(x))
        zeros = nn.initializers.zeros_init()
        return nn.Conv(3, (3, 3), dtype=jnp.float32, kernel_init=zeros, name="out")(x.astype(jnp.float32))


def make_train_step(
    config: UNetConfig,
) -> tuple[Callable[[jax.Array], TrainState], Callable[[TrainState, Batch], tuple[TrainState, Metrics]]]:
    """Build `init_fn(key) -> state` and `train_step(state, batch) -> (state, metrics)`.

    `batch` has images `x` and `noise` float32[B, image, image, 3], `time` float32[B] in [0, 1] and `label` int32[B].
    """
    model = UNet(config)
    tx = optax.adamw(config.learning_rate, weight_decay=0.0)

    def init_fn(key: jax.Array) -> TrainState:
        image = jnp.zeros((1, config.image, config.image, 3))
        params = model.init(key, image, jnp.zeros(1), jnp.zeros(1, jnp.int32))["params"]
        return TrainState.create(apply_fn=model.apply, params=params, tx=tx)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        angle = batch["time"][:, None, None, None] * (jnp.pi / 2)
        noisy = jnp.cos(angle) * batch["x"] + jnp.sin(angle) * batch["noise"]

        def loss_fn(params: Any) -> jax.Array:
            predicted = state.apply_fn({"params": params}, noisy, batch["time"], batch["label"])
            return jnp.mean((predicted - batch["noise"]) ** 2)

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), {"loss": loss, "grad_norm": optax.tree.norm(grads)}

    return init_fn, train_step


def example_batch(config: UNetConfig, batch_size: int, seed: int = 0) -> dict[str, Any]:
    """Host arrays from a seed: smooth images whose colour is their label's, noise, times and labels."""
    rng = np.random.default_rng(seed)
    label = rng.integers(config.classes, size=batch_size, dtype=np.int32)
    colours = np.random.default_rng(12345).standard_normal((config.classes, 1, 1, 3), dtype=np.float32)
    shape = (batch_size, config.image, config.image, 3)
    return {
        "x": np.broadcast_to(colours[label], shape).copy(),
        "noise": rng.standard_normal(shape, dtype=np.float32),
        "time": rng.random(batch_size, dtype=np.float32),
        "label": label,
    }


def abstract_inputs(config: UNetConfig, batch_size: int) -> tuple[TrainState, Any]:
    """Shapes and types of `(state, batch)` as `jax.ShapeDtypeStruct`s: no parameter is ever materialised."""
    state = jax.eval_shape(make_train_step(config)[0], jax.random.key(0))
    image = jax.ShapeDtypeStruct((batch_size, config.image, config.image, 3), jnp.float32)
    time = jax.ShapeDtypeStruct((batch_size,), jnp.float32)
    return state, {"x": image, "noise": image, "time": time, "label": jax.ShapeDtypeStruct((batch_size,), jnp.int32)}
