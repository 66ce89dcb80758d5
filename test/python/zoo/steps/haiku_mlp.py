"""Haiku: `hk.transform_with_state` with an exponential moving average, dropout by `hk.next_rng_key`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case

ABOUT = About("Haiku", "transform_with_state, EMA state, dropout", needs=("haiku",))


def case() -> Case:
    import haiku as hk

    def forward(x: jax.Array) -> jax.Array:
        h = jax.nn.relu(hk.Linear(32)(x))
        h = hk.dropout(hk.next_rng_key(), 0.1, h)
        hk.ExponentialMovingAverage(0.9, name="seen")(jax.lax.stop_gradient(h.mean(0)))
        return hk.Linear(4)(h)

    net, tx = hk.transform_with_state(forward), optax.adam(1e-2, eps=1e-5)

    def step(params: Any, state: Any, opt_state: Any, key: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        def loss_fn(params: Any) -> Any:
            out, new = net.apply(params, state, key, x)
            return ((out - y) ** 2).mean(), new

        (loss, new), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
        updates, opt_state = tx.update(grads, opt_state)
        return optax.apply_updates(params, updates), new, opt_state, loss

    params, state = net.init(jax.random.key(0), jnp.ones((1, 8)))
    batches = []
    for i in range(2):
        a, b, c = jax.random.split(jax.random.key(i), 3)
        batches.append((a, jax.random.normal(b, (16, 8)), jax.random.normal(c, (16, 4))))
    return Case(step, (params, state, tx.init(params)), batches, rtol=1e-3)
