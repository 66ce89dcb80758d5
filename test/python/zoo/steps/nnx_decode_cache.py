"""NNX decoding with a KV cache: `MultiHeadAttention(decode=True)`, whose cache and index each call changes in place."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from zoo.harness import About, Case

ABOUT = About("NNX", "decode with a KV cache in place, sampled tokens")
WIDTH, HEADS, LENGTH, VOCABULARY, BATCH = 32, 4, 16, 64, 8


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=True, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.norm(x))
        return x + self.down(nnx.gelu(self.up(x)))


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(2)])

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.embed.attend(x)


def decode_step(model: Model, tokens: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    logits = model(tokens[:, None])[:, 0]
    return jax.random.categorical(key, logits / 0.8), logits


def case() -> Case:
    model = Model(nnx.Rngs(0))
    for block in model.blocks:
        block.attention.init_cache((BATCH, LENGTH, WIDTH), jnp.float32)
    batches = [(jax.random.randint(jax.random.key(i), (BATCH,), 0, VOCABULARY), jax.random.key(i)) for i in range(3)]
    return Case(decode_step, (model,), batches, jit=nnx.jit)
