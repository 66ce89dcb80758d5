"""NNX, functional style: layers made by `nnx.vmap`, applied by `nnx.scan`, with remat; next-token loss."""

from __future__ import annotations

from typing import Any

import jax
import optax
from flax import nnx

from zoo.harness import About, Case

ABOUT = About("NNX", "transformer: nnx.vmap, nnx.scan, nnx.remat")


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm = nnx.RMSNorm(32, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(4, 32, use_bias=False, decode=False, rngs=rngs)
        self.up = nnx.Linear(32, 64, rngs=rngs)
        self.down = nnx.Linear(64, 32, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.norm(x), mask=nnx.make_causal_mask(x[..., 0]))
        return x + self.down(nnx.gelu(self.up(x)))


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        @nnx.split_rngs(splits=4)
        @nnx.vmap(in_axes=(0,), out_axes=0)
        def make(rngs: nnx.Rngs) -> Block:
            return Block(rngs)

        self.embed = nnx.Embed(64, 32, rngs=rngs)
        self.blocks = make(rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
        @nnx.remat
        def forward(block: Block, x: jax.Array) -> jax.Array:
            return block(x)

        return self.embed.attend(forward(self.blocks, self.embed(tokens)))


def case() -> Case:
    graphdef, params = nnx.split(Model(nnx.Rngs(0)))
    tx = optax.adam(1e-2, eps=1e-6)

    def step(params: Any, opt_state: Any, tokens: jax.Array) -> Any:
        def loss_fn(params: Any) -> jax.Array:
            logits = nnx.merge(graphdef, params)(tokens[:, :-1])
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    batches = [(jax.random.randint(jax.random.key(i), (8, 9), 0, 64),) for i in range(2)]
    return Case(step, (params, tx.init(params)), batches, donate=(0, 1), rtol=1e-3)
