"""A batch of sequences of other lengths: masks from lengths, losses over valid tokens only, pooled by last token."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case

ABOUT = About("JAX", "padded sequences: masks from lengths, mean of valid tokens")


def case() -> Case:
    tx = optax.adamw(1e-2, eps=1e-5)

    def step(params: Any, opt_state: Any, batch: dict[str, jax.Array]) -> Any:
        def loss_fn(p: Any) -> Any:
            tokens, lengths = batch["tokens"], batch["lengths"]
            x = p["embed"][tokens]
            valid = jnp.arange(tokens.shape[1]) < lengths[:, None]
            q, k, v = (x @ p[n] for n in "qkv")
            scores = jnp.einsum("bid,bjd->bij", q, k) / 4.0
            scores = jnp.where(valid[:, None, :], scores, jnp.finfo(scores.dtype).min)
            h = x + jnp.einsum("bij,bjd->bid", jax.nn.softmax(scores), v)
            logits = h[:, :-1] @ p["embed"].T
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
            weight = valid[:, 1:].astype(jnp.float32)
            last = jnp.take_along_axis(h, (lengths - 1)[:, None, None], axis=1)[:, 0]
            extra = ((last @ p["head"])[:, 0] - lengths / 12.0) ** 2
            return (losses * weight).sum() / weight.sum() + extra.mean(), weight.sum()

        (loss, tokens), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, {"loss": loss, "tokens": tokens}

    k = jax.random.split(jax.random.key(0), 5)
    params = {"embed": jax.random.normal(k[0], (32, 16)) * 0.3, "head": jax.random.normal(k[4], (16, 1)) * 0.3}
    params |= {n: jax.random.normal(key, (16, 16)) * 0.3 for n, key in zip("qkv", k[1:4], strict=True)}
    batches = []
    for i in range(2):
        a, b = jax.random.split(jax.random.key(i))
        batches.append(
            ({"tokens": jax.random.randint(a, (8, 12), 0, 32), "lengths": jax.random.randint(b, (8,), 2, 13)},)
        )
    return Case(step, (params, tx.init(params)), batches, donate=(0, 1), rtol=1e-3)
