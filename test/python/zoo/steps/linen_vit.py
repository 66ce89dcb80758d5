"""Linen: a vision transformer with patches, a class token, remat and AdamW under a warm-up schedule and clipping."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

from zoo.harness import About, Case

ABOUT = About("Linen", "ViT, remat, AdamW, schedule, clipping")


class Block(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + nn.MultiHeadDotProductAttention(num_heads=4)(nn.LayerNorm()(x))
        y = nn.Dense(64)(nn.LayerNorm()(x))
        return x + nn.Dense(32)(nn.gelu(y))


class ViT(nn.Module):
    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        x = nn.Conv(32, (4, 4), strides=(4, 4), name="patches")(images)
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        token = self.param("cls", nn.initializers.zeros, (1, 1, 32))
        x = jnp.concatenate([jnp.tile(token, (x.shape[0], 1, 1)), x], axis=1)
        x = x + self.param("positions", nn.initializers.normal(0.02), (1, x.shape[1], 32))
        for _ in range(2):
            x = nn.remat(Block)()(x)
        return nn.Dense(10)(nn.LayerNorm()(x)[:, 0])


def step(state: TrainState, images: jax.Array, labels: jax.Array) -> Any:
    def loss_fn(params: Any) -> jax.Array:
        logits = state.apply_fn({"params": params}, images)
        smooth = optax.smooth_labels(jax.nn.one_hot(labels, 10), 0.1)
        return optax.softmax_cross_entropy(logits, smooth).mean()

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), {"loss": loss, "norm": optax.global_norm(grads)}


def case() -> Case:
    model = ViT()
    params = model.init(jax.random.key(0), jnp.ones((1, 16, 16, 3)))["params"]
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 2, 10)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, eps=1e-6))
    state = TrainState.create(apply_fn=model.apply, params=params, tx=tx)
    batches = []
    for i in range(3):
        a, b = jax.random.split(jax.random.key(i))
        batches.append((jax.random.normal(a, (8, 16, 16, 3)), jax.random.randint(b, (8,), 0, 10)))
    return Case(step, (state,), batches, donate=(0,), rtol=1e-3, atol=1e-4)  # a key's bias has no gradient but rounding
