"""Haiku: multi-head attention and `hk.remat`, a scan over time, no state."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case

ABOUT = About("Haiku", "transformer: MultiHeadAttention, hk.remat", needs=("haiku",))


def case() -> Case:
    import haiku as hk

    def block(x: jax.Array) -> jax.Array:
        init = hk.initializers.VarianceScaling(0.5)
        h = hk.LayerNorm(-1, True, True)(x)
        x = x + hk.MultiHeadAttention(4, 8, with_bias=False, w_init=init, model_size=32)(
            h, h, h, jnp.tril(jnp.ones((1, 1, 8, 8)))
        )
        return x + hk.nets.MLP([64, 32], activation=jax.nn.gelu)(hk.LayerNorm(-1, True, True)(x))

    def forward(tokens: jax.Array) -> jax.Array:
        x = hk.Embed(64, 32)(tokens)
        for _ in range(2):
            x = hk.remat(block)(x)
        return hk.Linear(64)(x)

    net, tx = hk.without_apply_rng(hk.transform(forward)), optax.adam(1e-2, eps=1e-5)

    def step(params: Any, opt_state: Any, tokens: jax.Array) -> Any:
        def loss_fn(params: Any) -> jax.Array:
            logits = net.apply(params, tokens[:, :-1])
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    params = net.init(jax.random.key(0), jnp.zeros((1, 8), jnp.int32))
    batches = [(jax.random.randint(jax.random.key(i), (8, 9), 0, 64),) for i in range(2)]
    return Case(step, (params, tx.init(params)), batches, rtol=1e-3)
