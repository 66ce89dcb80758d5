"""Sizes that nothing divides: a batch of 10, widths of 13 and 7, a vocabulary of 101, 3 heads."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case

ABOUT = About("JAX", "odd sizes: batch 10, widths 13 and 7, vocabulary 101")


def case() -> Case:
    tx = optax.adam(1e-2, eps=1e-5)

    def step(params: Any, opt_state: Any, tokens: jax.Array) -> Any:
        def loss_fn(p: Any) -> jax.Array:
            x = p["embed"][tokens[:, :-1]]
            q, k = (jnp.einsum("bsd,dhe->bhse", x, p[n]) for n in ("q", "k"))
            weights = jax.nn.softmax(q @ k.swapaxes(-1, -2) / 7**0.5)
            x = x + jnp.einsum("bhst,btd,hde->bse", weights, x, p["o"])
            logits = x @ p["embed"].T + p["bias"]
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    k = jax.random.split(jax.random.key(0), 4)
    params = {
        "embed": jax.random.normal(k[0], (101, 13)) * 0.3, "bias": jnp.zeros(101),
        "q": jax.random.normal(k[1], (13, 3, 7)) * 0.3, "k": jax.random.normal(k[2], (13, 3, 7)) * 0.3,
        "o": jax.random.normal(k[3], (3, 13, 13)) * 0.1,
    }  # fmt: skip
    batches = [(jax.random.randint(jax.random.key(i), (10, 12), 0, 101),) for i in range(2)]
    return Case(step, (params, tx.init(params)), batches, rtol=1e-3)
