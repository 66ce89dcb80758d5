"""A normalising flow: affine couplings, log-determinants, negative log-likelihood."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case

ABOUT = About("JAX", "normalising flow: affine couplings, log-determinant")


def coupling(p: dict[str, jax.Array], x: jax.Array, flip: bool) -> tuple[jax.Array, jax.Array]:
    a, b = jnp.split(x, 2, axis=-1)
    if flip:
        a, b = b, a
    shift, scale = jnp.split(jnp.tanh(a @ p["w1"] + p["b1"]) @ p["w2"], 2, axis=-1)
    scale = jnp.tanh(scale)
    b = b * jnp.exp(scale) + shift
    return jnp.concatenate([b, a] if flip else [a, b], axis=-1), scale.sum(-1)


def case() -> Case:
    tx = optax.chain(optax.zero_nans(), optax.adam(1e-2, eps=1e-6))

    def step(params: Any, opt_state: Any, x: jax.Array) -> Any:
        def loss_fn(params: Any) -> jax.Array:
            z, total = x, jnp.zeros(x.shape[0])
            for i, p in enumerate(params):
                z, logdet = coupling(p, z, i % 2 == 1)
                total += logdet
            return -(jax.scipy.stats.norm.logpdf(z).sum(-1) + total).mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    keys = jax.random.split(jax.random.key(0), 8)
    params = [
        {"w1": jax.random.normal(keys[2 * i], (4, 16)) * 0.5, "b1": jnp.zeros(16),
         "w2": jax.random.normal(keys[2 * i + 1], (16, 8)) * 0.1}
        for i in range(4)
    ]  # fmt: skip
    batches = [(jax.random.normal(jax.random.key(i), (16, 8)) * 2 + 1,) for i in range(2)]
    return Case(step, (params, tx.init(params)), batches, rtol=1e-3)
