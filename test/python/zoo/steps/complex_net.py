"""Complex parameters and activations: a complex MLP trained on phases, conjugated gradients, SGD."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from zoo.harness import About, Case

ABOUT = About("JAX", "complex64 parameters, conjugated gradients", ci=("one",))


def step(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> Any:
    def loss_fn(p: dict[str, jax.Array]) -> jax.Array:
        h = x.astype(jnp.complex64) @ p["a"]
        h = h * jax.nn.sigmoid(jnp.abs(h))
        return (jnp.abs(h @ p["b"] - jnp.exp(1j * y)) ** 2).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * jnp.conj(g), params, grads), loss


def case() -> Case:
    k = jax.random.split(jax.random.key(0), 2)
    params = {
        "a": jax.random.normal(k[0], (8, 16), jnp.complex64) * 0.3,
        "b": jax.random.normal(k[1], (16, 4), jnp.complex64) * 0.3,
    }
    batches = []
    for i in range(2):
        a, b = jax.random.split(jax.random.key(i))
        batches.append((jax.random.normal(a, (16, 8)), jax.random.normal(b, (16, 4))))
    return Case(step, (params,), batches)
