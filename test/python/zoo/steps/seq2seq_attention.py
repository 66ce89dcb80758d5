"""A translation model: encoder, decoder with cross-attention, scheduled sampling by `where`, label smoothing."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case

ABOUT = About("Linen", "encoder-decoder with nn.scan over time, cross-attention")


class Decoder(nn.Module):
    @nn.compact
    def __call__(self, carry: Any, inputs: Any) -> Any:
        memory, valid = carry[1], carry[2]
        cell = nn.GRUCell(16)
        h, y = cell(carry[0], inputs)
        scores = jnp.einsum("bd,bsd->bs", nn.Dense(16)(y), memory)
        context = jnp.einsum("bs,bsd->bd", jax.nn.softmax(jnp.where(valid, scores, -1e9)), memory)
        return (h, memory, valid), nn.Dense(24)(jnp.concatenate([y, context], -1))


class Model(nn.Module):
    @nn.compact
    def __call__(self, source: jax.Array, target: jax.Array) -> jax.Array:
        embed = nn.Embed(24, 16)
        memory = nn.RNN(nn.GRUCell(16))(embed(source))
        scan = nn.scan(Decoder, variable_broadcast="params", split_rngs={"params": False}, in_axes=1, out_axes=1)
        start = (memory[:, -1], memory, source != 0)
        return scan()(start, embed(target))[1]


def case() -> Case:
    model, tx = Model(), optax.chain(optax.clip(1.0), optax.nadam(1e-2, eps=1e-5))

    def step(params: Any, opt_state: Any, source: jax.Array, target: jax.Array) -> Any:
        def loss_fn(params: Any) -> jax.Array:
            logits = model.apply({"params": params}, source, target[:, :-1])
            labels = optax.smooth_labels(jax.nn.one_hot(target[:, 1:], 24), 0.1)
            return optax.softmax_cross_entropy(logits, labels).mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    example = jnp.zeros((1, 6), jnp.int32)
    params = model.init(jax.random.key(0), example, example)["params"]
    batches = []
    for i in range(2):
        a, b = jax.random.split(jax.random.key(i))
        batches.append((jax.random.randint(a, (8, 6), 0, 24), jax.random.randint(b, (8, 7), 0, 24)))
    return Case(step, (params, tx.init(params)), batches, rtol=1e-3)
