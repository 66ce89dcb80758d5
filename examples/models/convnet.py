"""A residual convolutional classifier with BatchNorm and its training step, in Flax linen and Optax.

Ordinary single-device code. The state carries BatchNorm's running statistics, which the step updates without gradients.
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
from flax.training import train_state

Batch = dict[str, jax.Array]
Metrics = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True, slots=True)
class ConvNetConfig:
    """A ResNet (He et al. 2015, arXiv 1512.03385): `blocks[i]` blocks of width `width * 2**i` in stage i.

    `bottleneck` selects the 1x1-3x3-1x1 block of ResNet-50; `image` is height and width in pixels; `large_stem` is the
    7x7 convolution and pooling used for big images. `dtype` is the compute type; parameters and statistics are float32.
    """

    blocks: tuple[int, ...]
    width: int
    classes: int
    image: int
    bottleneck: bool = False
    large_stem: bool = True
    dtype: str = "float32"
    learning_rate: float = 0.1
    weight_decay: float = 1e-4

    def num_params(self) -> int:
        """Number of trained scalars: convolutions without biases, BatchNorm's pairs, and the classifier."""
        channels = self.width
        total = (49 if self.large_stem else 9) * 3 * channels + 2 * channels
        for stage, count in enumerate(self.blocks):
            mid = self.width * 2**stage
            out = mid * 4 if self.bottleneck else mid
            for index in range(count):
                if self.bottleneck:
                    total += channels * mid + 9 * mid * mid + mid * out + 2 * (2 * mid + out)
                else:
                    total += 9 * channels * mid + 9 * mid * mid + 4 * mid
                if index == 0 and (stage > 0 or channels != out):
                    total += channels * out + 2 * out
                channels = out
        return total + (channels + 1) * self.classes


PRESETS: dict[str, ConvNetConfig] = {
    "tiny": ConvNetConfig(blocks=(1, 1), width=16, classes=4, image=16, large_stem=False, learning_rate=0.05),
    "resnet18": ConvNetConfig(blocks=(2, 2, 2, 2), width=64, classes=1000, image=224, dtype="bfloat16"),
    "resnet50": ConvNetConfig(
        blocks=(3, 4, 6, 3), width=64, classes=1000, image=224, bottleneck=True, dtype="bfloat16"
    ),
}
# 256 images is the batch of He et al.
BATCH: dict[str, int] = {"tiny": 16, "resnet18": 256, "resnet50": 256}


class TrainState(train_state.TrainState):
    """Flax's train state with BatchNorm's running mean and variance beside it."""

    batch_stats: Any


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions, or a 1x1-3x3-1x1 bottleneck, added to the (projected) input."""

    config: ConvNetConfig
    channels: int
    stride: int
    train: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        cfg = self.config
        conv = functools.partial(nn.Conv, use_bias=False, dtype=cfg.dtype)
        norm = functools.partial(nn.BatchNorm, use_running_average=not self.train, momentum=0.9, dtype=cfg.dtype)
        strides = (self.stride, self.stride)
        if cfg.bottleneck:
            out = 4 * self.channels
            y = nn.relu(norm()(conv(self.channels, (1, 1))(x)))
            y = nn.relu(norm()(conv(self.channels, (3, 3), strides)(y)))
            y = conv(out, (1, 1))(y)
        else:
            out = self.channels
            y = nn.relu(norm()(conv(out, (3, 3), strides)(x)))
            y = conv(out, (3, 3))(y)
        # A last scale that starts at zero makes each block an identity at first, which trains better.
        y = norm(scale_init=nn.initializers.zeros_init())(y)
        if x.shape[-1] != out or self.stride > 1:
            x = norm(name="norm_proj")(conv(out, (1, 1), strides, name="conv_proj")(x))
        return nn.relu(x + y)


class ConvNet(nn.Module):
    """Images [B, H, W, 3] to logits [B, classes] in the compute type."""

    config: ConvNetConfig

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        cfg = self.config
        kernel, stride = ((7, 7), (2, 2)) if cfg.large_stem else ((3, 3), (1, 1))
        x = nn.Conv(cfg.width, kernel, stride, use_bias=False, dtype=cfg.dtype, name="stem")(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9, dtype=cfg.dtype, name="norm_stem")(x)
        x = nn.relu(x)
        if cfg.large_stem:
            x = nn.max_pool(x, (3, 3), (2, 2), padding="SAME")
        for stage, count in enumerate(cfg.blocks):
            for index in range(count):
                stride_here = 2 if stage > 0 and index == 0 else 1
                block = ResidualBlock(cfg, cfg.width * 2**stage, stride_here, train, name=f"block_{stage}_{index}")
                x = block(x)
        x = x.mean(axis=(1, 2))
        return nn.Dense(cfg.classes, dtype=cfg.dtype, name="classifier")(x)


def make_train_step(
    config: ConvNetConfig,
) -> tuple[Callable[[jax.Array], TrainState], Callable[[TrainState, Batch], tuple[TrainState, Metrics]]]:
    """Build `init_fn(key) -> state` and `train_step(state, batch) -> (state, metrics)`.

    `batch` has `x` float32[B, image, image, 3] and `y` int32[B]. The optimizer is SGD with Nesterov momentum; weight
    decay leaves biases and BatchNorm's scales alone.
    """
    model = ConvNet(config)
    tx = optax.chain(
        optax.add_decayed_weights(config.weight_decay, mask=lambda p: jax.tree.map(lambda leaf: leaf.ndim > 1, p)),
        optax.sgd(config.learning_rate, momentum=0.9, nesterov=True),
    )

    def init_fn(key: jax.Array) -> TrainState:
        variables = model.init(key, jnp.zeros((1, config.image, config.image, 3)), train=False)
        return TrainState.create(
            apply_fn=model.apply, params=variables["params"], tx=tx, batch_stats=variables["batch_stats"]
        )

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        def loss_fn(params: Any) -> tuple[jax.Array, tuple[jax.Array, Any]]:
            variables = {"params": params, "batch_stats": state.batch_stats}
            logits, updates = state.apply_fn(variables, batch["x"], train=True, mutable=["batch_stats"])
            logits = logits.astype(jnp.float32)
            loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()
            return loss, (logits, updates["batch_stats"])

        (loss, (logits, batch_stats)), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        accuracy = (jnp.argmax(logits, axis=-1) == batch["y"]).mean()
        state = state.apply_gradients(grads=grads, batch_stats=batch_stats)
        return state, {"loss": loss, "accuracy": accuracy}

    return init_fn, train_step


def example_batch(config: ConvNetConfig, batch_size: int, seed: int = 0) -> dict[str, Any]:
    """Random host arrays: images `x` float32[batch_size, H, W, 3] whose mean colour depends on the label `y` int32."""
    rng = np.random.default_rng(seed)
    y = rng.integers(config.classes, size=batch_size, dtype=np.int32)
    colours = np.random.default_rng(12345).standard_normal((config.classes, 1, 1, 3), dtype=np.float32)
    noise = rng.standard_normal((batch_size, config.image, config.image, 3), dtype=np.float32)
    return {"x": noise + colours[y], "y": y}


def abstract_inputs(config: ConvNetConfig, batch_size: int) -> tuple[TrainState, Any]:
    """Shapes and types of `(state, batch)` as `jax.ShapeDtypeStruct`s: no parameter is ever materialised."""
    init_fn, _ = make_train_step(config)
    state = jax.eval_shape(init_fn, jax.random.key(0))
    x = jax.ShapeDtypeStruct((batch_size, config.image, config.image, 3), jnp.float32)
    return state, {"x": x, "y": jax.ShapeDtypeStruct((batch_size,), jnp.int32)}
