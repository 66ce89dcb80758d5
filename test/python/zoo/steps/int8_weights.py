"""Inference with int8 weights: scales per channel, activations quantised on the way, products in int32."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from zoo.harness import About, Case

ABOUT = About("JAX", "int8 weights, int32 products, scales per channel", ci=("mesh",))


def step(params: list[dict[str, jax.Array]], x: jax.Array) -> Any:
    for p in params:
        scale = jnp.abs(x).max(-1, keepdims=True) / 127.0
        q = jnp.clip(jnp.round(x / scale), -127, 127).astype(jnp.int8)
        product = jax.lax.dot_general(q, p["q"], (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)
        x = jax.nn.relu(product.astype(jnp.float32) * scale * p["scale"])
    return x, x.argmax(-1)


def case() -> Case:
    params = []
    for i in range(2):
        w = jax.random.normal(jax.random.key(i), (32, 32))
        scale = jnp.abs(w).max(0) / 127.0
        params.append({"q": jnp.round(w / scale).astype(jnp.int8), "scale": scale})
    return Case(step, (), [(params, jax.random.normal(jax.random.key(9 + i), (16, 32))) for i in range(2)])
