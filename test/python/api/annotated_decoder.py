"""A decoder with the structure of MaxText's, in Linen: annotated by logical axes throughout, its rules and its meshes.

Layers in one `nn.scan` under a remat policy, RMSNorm, rotary positions, grouped queries, SwiGLU, bfloat16 computing on
float32 parameters in `LogicallyPartitioned` boxes, a loss with z-loss, AdamW with a mask in a `TrainState`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState
from jax.sharding import AxisType, Mesh

AXES = (
    "data", "stage", "fsdp", "fsdp_transpose", "sequence", "context", "context_autoregressive", "tensor",
    "tensor_transpose", "tensor_sequence", "expert", "autoregressive",
)  # fmt: skip
RULES = (
    ("activation_batch", ("data", "fsdp", "fsdp_transpose", "expert")),
    ("activation_length", ("sequence", "context")),
    ("activation_embed", ("tensor_transpose",)),
    ("activation_heads", ("tensor", "tensor_transpose", "tensor_sequence")),
    ("activation_mlp", ("tensor", "tensor_transpose", "tensor_sequence")),
    ("activation_vocab", ("tensor", "tensor_transpose", "sequence")),
    ("vocab", ("tensor", "tensor_transpose", "autoregressive")),
    ("embed", ("fsdp", "sequence", "context", "expert")),
    ("heads", ("tensor", "tensor_transpose", "autoregressive")),
    ("kv_heads", ("tensor", "autoregressive")),
    ("mlp", ("fsdp_transpose", "tensor", "autoregressive")),
    ("norm", ("tensor_transpose",)),
    ("layers", "stage"),
)
LAYERS, EMBED, HEADS, KV, SIZE, MLP, VOCAB = 2, 32, 4, 2, 8, 64, 128
BATCH, LENGTH = 8, 16
ACTIVATION = ("activation_batch", "activation_length", "activation_embed")


def mesh_of(**sizes: int) -> Mesh:
    """The mesh of all twelve axes, of one device but for those given."""
    shape = tuple(sizes.get(axis, 1) for axis in AXES)
    devices = np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape)
    return Mesh(devices, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def _boxed(axes: tuple[str, ...]) -> Callable[..., Any]:
    return nn.with_logical_partitioning(nn.initializers.normal(0.1), axes)


class Norm(nn.Module):
    """Root mean square, in float32."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param("scale", nn.with_logical_partitioning(nn.initializers.ones, ("norm",)), (x.shape[-1],))
        wide = x.astype(jnp.float32)
        return (wide * jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


class Dense(nn.Module):
    """From `EMBED` to some dimensions, or back, in bfloat16."""

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    contract: int = 1

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.param("kernel", _boxed(self.axes), self.shape, jnp.float32).astype(jnp.bfloat16)
        last = tuple(range(x.ndim - self.contract, x.ndim))
        return jax.lax.dot_general(x, kernel, ((last, tuple(range(self.contract))), ((), ())))


def rotate(x: jax.Array) -> jax.Array:
    """Rotary positions of [batch, length, heads, size]."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] * 1e4 ** (-jnp.arange(half) / half)
    sin, cos = jnp.sin(angles)[:, None], jnp.cos(angles)[:, None]
    a, b = jnp.split(x.astype(jnp.float32), 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


class Layer(nn.Module):
    """Attention and a gated unit, each after a norm."""

    @nn.compact
    def __call__(self, x: jax.Array, _: None) -> tuple[jax.Array, None]:
        heads = ("activation_batch", "activation_length", "activation_heads", None)
        x = nn.with_logical_constraint(x, ACTIVATION)
        y = nn.with_logical_constraint(Norm(name="before")(x), ACTIVATION)
        q = Dense((EMBED, HEADS, SIZE), ("embed", "heads", "kv"), name="query")(y)
        k = Dense((EMBED, KV, SIZE), ("embed", "kv_heads", "kv"), name="key")(y)
        v = Dense((EMBED, KV, SIZE), ("embed", "kv_heads", "kv"), name="value")(y)
        q, k = rotate(nn.with_logical_constraint(q, heads)), rotate(k)
        grouped = q.reshape(*q.shape[:2], KV, HEADS // KV, SIZE)
        scores = jnp.einsum("blkgs,bmks->bkglm", grouped, k).astype(jnp.float32) * SIZE**-0.5
        scores = jnp.where(jnp.tril(jnp.ones((x.shape[1],) * 2, bool)), scores, -1e30)
        mixed = jnp.einsum("bkglm,bmks->blkgs", jax.nn.softmax(scores).astype(v.dtype), v).reshape(q.shape)
        mixed = nn.with_logical_constraint(mixed, heads)
        x = x + nn.with_logical_constraint(
            Dense((HEADS, SIZE, EMBED), ("heads", "kv", "embed"), 2, name="out")(mixed), ACTIVATION
        )
        y = Norm(name="between")(x)
        gate = Dense((EMBED, MLP), ("embed", "mlp"), name="gate")(y)
        up = Dense((EMBED, MLP), ("embed", "mlp"), name="up")(y)
        inner = nn.with_logical_constraint(nn.silu(gate) * up, (*ACTIVATION[:2], "activation_mlp"))
        y = Dense((MLP, EMBED), ("mlp", "embed"), name="down")(inner)
        return nn.with_logical_constraint(x + y, ACTIVATION), None


class Decoder(nn.Module):
    """Tokens [batch, length] to logits in float32."""

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        table = self.param("embedding", _boxed(("vocab", "embed")), (VOCAB, EMBED), jnp.float32)
        x = nn.with_logical_constraint(table.astype(jnp.bfloat16)[tokens], ACTIVATION)
        body = nn.remat(Layer, policy=jax.checkpoint_policies.nothing_saveable, prevent_cse=False)
        layers = nn.scan(
            body,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=LAYERS,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )
        x, _ = layers(name="layers")(x, None)
        logits = Dense((EMBED, VOCAB), ("embed", "vocab"), name="logits")(Norm(name="last")(x))
        return nn.with_logical_constraint(logits, (*ACTIVATION[:2], "activation_vocab")).astype(jnp.float32)


def make_state(key: jax.Array) -> TrainState:
    """Parameters in their boxes; weight decay only for matrices."""
    model = Decoder()
    params = model.init(key, jnp.zeros((1, LENGTH), jnp.int32))["params"]
    mask = jax.tree.map(lambda p: p.ndim > 1, nn.meta.unbox(params))
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2, mask=lambda _: _boxed_like(params, mask)))
    return TrainState.create(apply_fn=model.apply, params=params, tx=tx)


def _boxed_like(params: Any, mask: Any) -> Any:
    return jax.tree.map(lambda box, value: box.replace_boxed(value), params, mask, is_leaf=nn.meta.is_axis_metadata)


def train_step(state: TrainState, batch: dict[str, jax.Array]) -> tuple[TrainState, dict[str, jax.Array]]:
    """One step on inputs and targets."""

    def loss_of(params: Any) -> tuple[jax.Array, jax.Array]:
        logits = state.apply_fn({"params": params}, batch["inputs"])
        top = jax.nn.logsumexp(logits, -1)
        picked = jnp.take_along_axis(logits, batch["targets"][..., None], -1)[..., 0]
        z_loss = 1e-4 * jnp.mean(top**2)
        return jnp.mean(top - picked) + z_loss, z_loss

    (loss, z_loss), grads = jax.value_and_grad(loss_of, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads), {"loss": loss, "z_loss": z_loss}


def batch_of(seed: int = 0) -> dict[str, np.ndarray]:
    """Tokens to learn by heart."""
    tokens = np.random.default_rng(seed).integers(0, VOCAB, (BATCH, LENGTH + 1)).astype(np.int32)
    return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}
