"""Linear recurrent units: complex states by `lax.associative_scan`, layers in two loops, those of one checkpointed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case

ABOUT = About("JAX", "LRU: complex associative_scan in scanned layers, jax.checkpoint", ci=("one", "stages"))
D, S, LAYERS = 16, 12, 2


def layer(h: jax.Array, p: dict[str, jax.Array]) -> tuple[jax.Array, None]:
    decay = jnp.exp(-jnp.exp(p["rate"]) + 1j * p["phase"])
    driven = (h @ p["in"]).astype(jnp.complex64)

    def combine(left: Any, right: Any) -> Any:
        return left[0] * right[0], right[0] * left[1] + right[1]

    _, s = jax.lax.associative_scan(combine, (jnp.broadcast_to(decay, driven.shape), driven), axis=1)
    s = jnp.where(jnp.abs(s) < 1e3, s, 0)
    return h + jnp.tanh((s * (p["out"][0] + 1j * p["out"][1])).real @ p["mix"]), None


def case() -> Case:
    tx = optax.adam(1e-2, eps=1e-6)

    def step(params: Any, opt_state: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss_fn(params: Any) -> jax.Array:
            h = jax.lax.scan(jax.checkpoint(layer), x, params["first"])[0]
            h = jax.lax.scan(layer, h, params["second"])[0]
            return ((h @ params["head"] - y) ** 2).mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    def stack(key: jax.Array) -> dict[str, jax.Array]:
        k = jax.random.split(key, 4)
        return {
            "rate": jnp.zeros((LAYERS, S)), "phase": jax.random.normal(k[0], (LAYERS, S)),
            "in": jax.random.normal(k[1], (LAYERS, D, S)) * 0.2, "out": jax.random.normal(k[2], (LAYERS, 2, S)),
            "mix": jax.random.normal(k[3], (LAYERS, S, D)) * 0.2,
        }  # fmt: skip

    a, b, c = jax.random.split(jax.random.key(0), 3)
    params = {"first": stack(a), "second": stack(b), "head": jax.random.normal(c, (D, 1))}
    batches = []
    for i in range(2):
        x = jax.random.normal(jax.random.key(i), (8, 16, D))
        batches.append((x, jnp.cumsum(x.mean(-1, keepdims=True), 1)))
    return Case(step, (params, tx.init(params)), batches, rtol=1e-3)
