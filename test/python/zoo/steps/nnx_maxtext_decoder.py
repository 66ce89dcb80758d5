"""MaxText's decoder in NNX: twelve mesh axes, logical axis rules, packed sequences, blocked attention, bfloat16."""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, Mesh

from zoo.harness import About, Case

ABOUT = About("NNX", "MaxText's decoder: 12 mesh axes, scanned layers, remat policy, blocked attention", mesh="2x2x2")
AXES = (
    "data", "stage", "fsdp", "fsdp_transpose", "sequence", "context", "context_autoregressive", "tensor",
    "tensor_transpose", "tensor_sequence", "expert", "autoregressive",
)  # fmt: skip
RULES = (
    ("activation_batch", ("data", "fsdp", "fsdp_transpose", "expert")),
    ("activation_length", ("sequence", "context")),
    ("activation_heads", ("tensor", "tensor_transpose", "sequence", "tensor_sequence")),
    ("activation_mlp", ("tensor", "tensor_transpose", "tensor_sequence")),
    ("activation_vocab", ("tensor", "tensor_transpose", "tensor_sequence")),
)
EMBED, HEADS, KV_HEADS, SIZE, MLP, VOCABULARY, LAYERS, LENGTH, BLOCK = 32, 4, 2, 8, 64, 64, 2, 16, 4
STREAM = ("activation_batch", "activation_length", None)


def rotate(x: jax.Array, positions: jax.Array) -> jax.Array:
    angles = positions[..., None] / 1e4 ** (jnp.arange(SIZE // 2) * 2 / SIZE)
    sin, cos = jnp.sin(angles)[:, :, None], jnp.cos(angles)[:, :, None]
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def attend(q: jax.Array, k: jax.Array, v: jax.Array, positions: jax.Array, segments: jax.Array) -> jax.Array:
    """Attention within segments, a block of keys at a time: the largest score and the sum so far are carried."""
    grouped = q.reshape(*q.shape[:2], KV_HEADS, HEADS // KV_HEADS, SIZE)

    def blocks(x: jax.Array) -> jax.Array:
        return jnp.moveaxis(x.reshape(x.shape[0], -1, BLOCK, *x.shape[2:]), 1, 0)

    def visit(carry: Any, block: Any) -> Any:
        out, top, total = carry
        keys, values, key_positions, key_segments = block
        scores = jnp.einsum("blkgs,bmks->bkglm", grouped, keys).astype(jnp.float32) * SIZE**-0.5
        seen = positions[:, :, None] >= key_positions[:, None]
        seen &= segments[:, :, None] == key_segments[:, None]
        scores = jnp.where(seen[:, None, None], scores, -1e30)
        higher = jnp.maximum(top, scores.max(-1))
        weights, old = jnp.exp(scores - higher[..., None]), jnp.exp(top - higher)
        mixed = jnp.einsum("bkglm,bmks->bkgls", weights.astype(values.dtype), values)
        return (out * old[..., None] + mixed, higher, total * old + weights.sum(-1)), None

    shape = (q.shape[0], KV_HEADS, HEADS // KV_HEADS, q.shape[1])
    start = (jnp.zeros((*shape, SIZE)), jnp.full(shape, -1e30), jnp.zeros(shape))
    (out, _, total), _ = jax.lax.scan(jax.checkpoint(visit), start, tuple(map(blocks, (k, v, positions, segments))))
    return jnp.moveaxis(out / total[..., None], 3, 1).reshape(q.shape).astype(q.dtype)


class Layer(nnx.Module):
    def __init__(self, mesh: Mesh, rngs: nnx.Rngs) -> None:
        linear = functools.partial(nnx.LinearGeneral, use_bias=False, dtype=jnp.bfloat16, rngs=rngs)
        self.before = nnx.RMSNorm(EMBED, dtype=jnp.bfloat16, rngs=rngs)
        self.query = linear(EMBED, (HEADS, SIZE))
        self.key = linear(EMBED, (KV_HEADS, SIZE))
        self.value = linear(EMBED, (KV_HEADS, SIZE))
        self.out = linear((HEADS, SIZE), EMBED, axis=(-2, -1))
        self.between = nnx.RMSNorm(EMBED, dtype=jnp.bfloat16, rngs=rngs)
        self.wi_0, self.wi_1, self.wo = linear(EMBED, MLP), linear(EMBED, MLP), linear(MLP, EMBED)
        self.constrain = functools.partial(nn.with_logical_constraint, rules=RULES, mesh=mesh)

    def __call__(self, x: jax.Array, positions: jax.Array, segments: jax.Array) -> jax.Array:
        x = self.constrain(x, STREAM)
        y = self.constrain(self.before(x), STREAM)
        heads = ("activation_batch", "activation_length", "activation_heads", None)
        q, k, v = self.constrain(self.query(y), heads), self.key(y), self.value(y)
        mixed = attend(rotate(q, positions), rotate(k, positions), v, positions, segments)
        x = x + self.constrain(self.out(self.constrain(mixed, heads)), STREAM)
        y = self.between(x)
        inner = self.constrain(nnx.silu(self.wi_0(y)) * self.wi_1(y), (*STREAM[:2], "activation_mlp"))
        return self.constrain(x + self.wo(inner), STREAM)


class Decoder(nnx.Module):
    def __init__(self, mesh: Mesh, rngs: nnx.Rngs) -> None:
        @nnx.split_rngs(splits=LAYERS)
        @nnx.vmap(in_axes=0, out_axes=0)
        def stacked(rngs: nnx.Rngs) -> Layer:
            return Layer(mesh, rngs)

        self.token_embedder = nnx.Embed(VOCABULARY, EMBED, dtype=jnp.bfloat16, rngs=rngs)
        self.layers = stacked(rngs)
        self.norm = nnx.RMSNorm(EMBED, dtype=jnp.bfloat16, rngs=rngs)
        self.logits = nnx.Linear(EMBED, VOCABULARY, use_bias=False, dtype=jnp.float32, rngs=rngs)
        self.constrain = functools.partial(nn.with_logical_constraint, rules=RULES, mesh=mesh)

    def __call__(self, tokens: jax.Array, positions: jax.Array, segments: jax.Array) -> jax.Array:
        policy = jax.checkpoint_policies.save_only_these_names("out")

        @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
        @functools.partial(nnx.remat, policy=policy)
        def through(layer: Layer, x: jax.Array) -> jax.Array:
            return layer(x, positions, segments)

        x = through(self.layers, self.constrain(self.token_embedder(tokens), STREAM))
        return self.constrain(self.logits(self.norm(x)), (*STREAM[:2], "activation_vocab"))


def train_step(model: Decoder, optimizer: nnx.Optimizer[Decoder], batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    def loss_fn(model: Decoder) -> Any:
        logits = model(batch["inputs"], batch["inputs_position"], batch["inputs_segmentation"])
        one_hot = jax.nn.one_hot(batch["targets"], VOCABULARY)
        log_z = jax.nn.logsumexp(logits, axis=-1)
        xent = log_z - (logits * one_hot).sum(-1) + 1e-4 * log_z**2
        weights = batch["targets_segmentation"] != 0
        total, count = (xent * weights).sum(), weights.sum()
        return total / (count + 1e-8), count

    (loss, count), grads = nnx.value_and_grad(loss_fn, has_aux=True)(model)
    optimizer.update(model, grads)
    return {"loss": loss, "tokens": count, "grad_norm": optax.global_norm(grads)}


def packed(seed: int) -> dict[str, np.ndarray]:
    """Two documents of different lengths in each row, and padding."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(1, VOCABULARY, (8, LENGTH + 1)).astype(np.int32)
    first, second = rng.integers(4, 7, 8)[:, None], rng.integers(11, LENGTH, 8)[:, None]
    at = np.arange(LENGTH)[None]
    segments = np.where(at < first, 1, np.where(at < second, 2, 0)).astype(np.int32)
    positions = np.where(at < first, at, at - first).astype(np.int32)
    return {
        "inputs": tokens[:, :-1], "inputs_position": positions, "inputs_segmentation": segments,
        "targets": tokens[:, 1:], "targets_segmentation": segments,
    }  # fmt: skip


def case() -> Case:
    sizes = [2 if axis in ("fsdp", "tensor") else 1 for axis in AXES]
    devices = np.array(jax.devices()[:4]).reshape(sizes)
    model = Decoder(Mesh(devices, AXES, axis_types=(AxisType.Auto,) * len(AXES)), nnx.Rngs(0))
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2, b2=0.95, eps=1e-4, weight_decay=0.1))
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    batches = [(packed(i),) for i in range(2)]
    # Adam divides noise of bfloat16 by itself.
    return Case(train_step, (model, optimizer), batches, donate=(0, 1), jit=nnx.jit, rtol=0.1, atol=2e-2)
