"""Wide-ResNet image classifiers of up to 13 billion parameters and their training step, in Flax linen and Optax.

Ordinary single-device code. Sizes and recipe are those of the Wide-ResNet table in Alpa (Zheng et al. 2022, arXiv
2201.12023, table 7 and its open benchmark suite); the block is the bottleneck of Zagoruyko and Komodakis 2016 (arXiv
1605.07146), whose 3x3 convolution is `widening` times as wide. BatchNorm's statistics are part of the state.
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

from examples.models import stacking

Batch = dict[str, jax.Array]
Metrics = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True, slots=True)
class WideResNetConfig:
    """Stage i has `blocks[i]` bottleneck blocks over `width * 2**i` channels, `widening` times that in the middle.

    `dtype` is the compute type; parameters and statistics are float32. `scan` loops over the blocks of a stage that
    have the same shapes (all but the first); `remat` recomputes each block in the backward pass.
    """

    blocks: tuple[int, ...]
    width: int
    widening: int
    classes: int = 1024
    image: int = 224
    dtype: str = "float32"
    scan: bool = False
    remat: bool = False
    learning_rate: float = 0.1
    weight_decay: float = 1e-4

    def num_params(self) -> int:
        """Number of trained scalars: convolutions without biases, BatchNorm's pairs, and the classifier."""
        channels = self.width
        total = 49 * 3 * channels + 2 * channels
        for stage, count in enumerate(self.blocks):
            narrow = self.width * 2**stage
            middle, out = narrow * self.widening, narrow * 4
            for index in range(count):
                total += channels * narrow + 9 * narrow * middle + middle * out + 2 * (narrow + middle + out)
                if index == 0:
                    total += channels * out + 2 * out
                channels = out
        return total + (channels + 1) * self.classes


_WRN50, _WRN101 = (3, 4, 6, 3), (3, 4, 23, 3)
PRESETS: dict[str, WideResNetConfig] = {
    "tiny": WideResNetConfig((3, 2), width=8, widening=2, classes=4, image=32, learning_rate=0.05),
    "250m": WideResNetConfig(_WRN50, width=160, widening=2),
    "500m": WideResNetConfig(_WRN50, width=224, widening=2),
    "1b": WideResNetConfig(_WRN50, width=320, widening=2),
    "2b": WideResNetConfig(_WRN50, width=448, widening=2),
    "4b": WideResNetConfig(_WRN50, width=640, widening=2),
    "6.8b": WideResNetConfig(_WRN50, width=320, widening=16),
    "13b": WideResNetConfig(_WRN101, width=320, widening=16),
}
# Alpa trains with 1,536 images in 24 to 38 micro-batches: these are the images of one micro-batch.
BATCH: dict[str, int] = dict.fromkeys(PRESETS, 64) | {"tiny": 16}


class TrainState(train_state.TrainState):
    """Flax's train state with BatchNorm's running mean and variance beside it."""

    batch_stats: Any


class Bottleneck(nn.Module):
    """1x1, wide 3x3 and 1x1 convolution added to the (projected) input. Returns `(x, None)`, as a scan expects."""

    config: WideResNetConfig
    channels: int
    stride: int
    train: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, None]:
        cfg = self.config
        conv = functools.partial(nn.Conv, use_bias=False, dtype=cfg.dtype)
        norm = functools.partial(nn.BatchNorm, use_running_average=not self.train, momentum=0.9, dtype=cfg.dtype)
        strides, out = (self.stride, self.stride), 4 * self.channels
        y = nn.relu(norm()(conv(self.channels, (1, 1))(x)))
        y = nn.relu(norm()(conv(self.channels * cfg.widening, (3, 3), strides)(y)))
        # A last scale that starts at zero makes each block an identity at first, which trains better.
        y = norm(scale_init=nn.initializers.zeros_init())(conv(out, (1, 1))(y))
        if x.shape != y.shape:
            x = norm(name="norm_proj")(conv(out, (1, 1), strides, name="conv_proj")(x))
        return nn.relu(x + y), None


class WideResNet(nn.Module):
    """Images [B, image, image, 3] to logits [B, classes] in the compute type."""

    config: WideResNetConfig

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        cfg = self.config
        x = nn.Conv(cfg.width, (7, 7), (2, 2), use_bias=False, dtype=cfg.dtype, name="stem")(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9, dtype=cfg.dtype, name="norm_stem")(x)
        x = nn.max_pool(nn.relu(x), (3, 3), (2, 2), padding="SAME")
        layers = functools.partial(
            stacking.apply_layers,
            Bottleneck,
            remat=cfg.remat,
            variables=("params", "batch_stats"),
            config=cfg,
            train=train,
        )
        for stage, count in enumerate(cfg.blocks):
            channels, stride = cfg.width * 2**stage, 1 if stage == 0 else 2
            x, _ = layers(x, count=1, name=f"first_{stage}", scan=False, channels=channels, stride=stride)
            x, _ = layers(x, count=count - 1, name=f"rest_{stage}", scan=cfg.scan, channels=channels, stride=1)
        return nn.Dense(cfg.classes, dtype=cfg.dtype, name="classifier")(x.mean(axis=(1, 2)))


def make_train_step(
    config: WideResNetConfig,
) -> tuple[Callable[[jax.Array], TrainState], Callable[[TrainState, Batch], tuple[TrainState, Metrics]]]:
    """Build `init_fn(key) -> state` and `train_step(state, batch) -> (state, metrics)`.

    `batch` has `x` float32[B, image, image, 3] and `y` int32[B]. The optimizer is SGD with Nesterov momentum; weight
    decay leaves biases and BatchNorm's scales alone.
    """
    model = WideResNet(config)

    def decayed(params: Any) -> Any:
        # By name and not by rank: a scan gives biases and scales one more dimension.
        return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", params)

    tx = optax.chain(
        optax.add_decayed_weights(config.weight_decay, mask=decayed),
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


def example_batch(config: WideResNetConfig, batch_size: int, seed: int = 0) -> dict[str, Any]:
    """Random host arrays: images `x` float32[batch_size, H, W, 3] whose mean colour depends on the label `y` int32."""
    rng = np.random.default_rng(seed)
    y = rng.integers(config.classes, size=batch_size, dtype=np.int32)
    colours = np.random.default_rng(12345).standard_normal((config.classes, 1, 1, 3), dtype=np.float32)
    noise = rng.standard_normal((batch_size, config.image, config.image, 3), dtype=np.float32)
    return {"x": noise + colours[y], "y": y}


def abstract_inputs(config: WideResNetConfig, batch_size: int) -> tuple[TrainState, Any]:
    """Shapes and types of `(state, batch)` as `jax.ShapeDtypeStruct`s: no parameter is ever materialised."""
    state = jax.eval_shape(make_train_step(config)[0], jax.random.key(0))
    x = jax.ShapeDtypeStruct((batch_size, config.image, config.image, 3), jnp.float32)
    return state, {"x": x, "y": jax.ShapeDtypeStruct((batch_size,), jnp.int32)}


def stack_layers(variables: dict[str, Any], config: WideResNetConfig) -> dict[str, Any]:
    """Parameters or statistics of the unrolled model as those of the scanned one."""
    return stacking.stack_layers(variables, *(f"rest_{stage}" for stage in range(len(config.blocks))))
