"""FP8 products with delayed scaling: float8_e4m3 forward, e5m2 for gradients, the scales' history in the state."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from zoo.harness import About, Case, Refused

ABOUT = About(
    "JAX", "fp8 products with delayed scaling, custom_vjp",
    stages=Refused("not sync-free", "scales are the largest activation of all examples"),
)  # fmt: skip


def quantise(x: jax.Array, scale: jax.Array, dtype: Any) -> jax.Array:
    top = jnp.finfo(dtype).max.astype(jnp.float32)
    return jnp.clip(x / scale, -top, top).astype(dtype).astype(jnp.float32) * scale


@jax.custom_vjp
def gradient_in_fp8(x: jax.Array) -> jax.Array:
    return x


def _forward(x: jax.Array) -> Any:
    return x, None


def _backward(_: Any, g: jax.Array) -> Any:
    return (quantise(g, jnp.abs(g).max() / 100.0 + 1e-12, jnp.float8_e5m2),)


gradient_in_fp8.defvjp(_forward, _backward)


def step(state: dict[str, Any], x: jax.Array, y: jax.Array) -> Any:
    scale = state["history"].max(-1) / 448.0

    def loss_fn(params: Any) -> Any:
        h, seen = x, []
        for i, w in enumerate(params):
            seen.append(jnp.abs(h).max())
            h = quantise(h, scale[i], jnp.float8_e4m3fn) @ quantise(w, jnp.float32(0.01), jnp.float8_e4m3fn)
            h = jnp.tanh(gradient_in_fp8(h))
        return ((h - y) ** 2).mean(), jnp.stack(seen)

    (loss, seen), grads = jax.value_and_grad(loss_fn, has_aux=True)(state["params"])
    params = jax.tree.map(lambda p, g: p - 0.1 * g, state["params"], grads)
    history = jnp.roll(state["history"], 1, axis=-1).at[:, 0].set(seen)
    return {"params": params, "history": history}, loss


def case() -> Case:
    a, b = jax.random.split(jax.random.key(0))
    params = [jax.random.normal(a, (16, 32)) * 0.2, jax.random.normal(b, (32, 8)) * 0.2]
    batches = []
    for i in range(2):
        a, b = jax.random.split(jax.random.key(i))
        batches.append((jax.random.normal(a, (16, 16)), jax.random.normal(b, (16, 8))))
    # A sum in another order may be rounded to another eighth.
    return Case(step, ({"params": params, "history": jnp.ones((2, 4)) * 3.0},), batches, rtol=2e-2)
