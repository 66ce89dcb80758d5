"""An LSTM language model: fused gates, a scan over time, truncated backpropagation with the hidden state carried."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case

ABOUT = About("JAX", "LSTM with carried hidden state (truncated BPTT)")
WIDTH, VOCABULARY = 16, 32


def case() -> Case:
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.5))

    def step(params: Any, opt_state: Any, tokens: jax.Array) -> Any:
        def cell(p: Any, carry: Any, x: jax.Array) -> Any:
            h, c = carry
            i, f, g, o = jnp.split(x @ p["wx"] + h @ p["wh"] + p["b"], 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        def loss_fn(p: Any) -> jax.Array:
            x = p["embed"][tokens[:, :-1]].swapaxes(0, 1)
            zeros = jnp.zeros((tokens.shape[0], WIDTH))
            _, hs = jax.lax.scan(lambda c, x: cell(p, c, x), (zeros, zeros), x, unroll=2)
            logits = hs @ p["embed"].T
            labels = tokens[:, 1:].swapaxes(0, 1)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, jnp.exp(loss)

    k = jax.random.split(jax.random.key(0), 3)
    params = {
        "embed": jax.random.normal(k[0], (VOCABULARY, WIDTH)) * 0.3,
        "wx": jax.random.normal(k[1], (WIDTH, 4 * WIDTH)) * 0.3,
        "wh": jax.random.normal(k[2], (WIDTH, 4 * WIDTH)) * 0.3, "b": jnp.zeros(4 * WIDTH),
    }  # fmt: skip
    batches = [(jax.random.randint(jax.random.key(i), (8, 9), 0, VOCABULARY),) for i in range(2)]
    return Case(step, (params, tx.init(params)), batches, donate=(0, 1), rtol=1e-3)
