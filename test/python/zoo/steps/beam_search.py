"""Beam search: a while loop that keeps the best sequences by `top_k` and stops when all have ended."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from zoo.harness import About, Case, Refused

ABOUT = About(
    "JAX", "beam search: while loop, top_k, gathered beams",
    stages=Refused("not sync-free", "the loop ends when all examples have ended"),
)  # fmt: skip
BEAMS, VOCABULARY, LENGTH = 3, 16, 6


def step(params: dict[str, jax.Array], start: jax.Array) -> Any:
    batch = start.shape[0]

    def logits(tokens: jax.Array) -> jax.Array:
        return jax.nn.log_softmax(jnp.tanh(params["embed"][tokens] @ params["w"]) @ params["embed"].T)

    def body(state: Any) -> Any:
        i, sequences, scores, ended = state
        last = jax.lax.dynamic_index_in_dim(sequences, i, axis=2, keepdims=False)
        following = logits(last)
        stay = jnp.full(VOCABULARY, -1e9).at[0].set(0.0)
        following = jnp.where(ended[..., None], stay, following)
        total = (scores[..., None] + following).reshape(batch, -1)
        scores, index = jax.lax.top_k(total, BEAMS)
        beam, token = index // VOCABULARY, index % VOCABULARY
        sequences = jnp.take_along_axis(sequences, beam[..., None], axis=1)
        sequences = jax.lax.dynamic_update_index_in_dim(sequences, token, i + 1, axis=2)
        ended = jnp.take_along_axis(ended, beam, axis=1) | (token == 0)
        return i + 1, sequences, scores, ended

    def more(state: Any) -> jax.Array:
        return (state[0] < LENGTH - 1) & ~state[3].all()

    sequences = jnp.zeros((batch, BEAMS, LENGTH), jnp.int32).at[:, :, 0].set(start[:, None])
    scores = jnp.tile(jnp.array([0.0, -1e9, -1e9]), (batch, 1))
    _, sequences, scores, _ = jax.lax.while_loop(more, body, (0, sequences, scores, jnp.zeros((batch, BEAMS), bool)))
    return sequences, scores


def case() -> Case:
    a, b = jax.random.split(jax.random.key(0))
    params = {"embed": jax.random.normal(a, (VOCABULARY, 8)), "w": jax.random.normal(b, (8, 8))}
    batches = [(params, jax.random.randint(jax.random.key(i), (8,), 1, VOCABULARY)) for i in range(2)]
    return Case(step, (), batches)
