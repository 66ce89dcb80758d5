"""LoRA: frozen bf16 weights beside trained low-rank factors, gradients of the factors only."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case

ABOUT = About("JAX", "LoRA: frozen bf16 base, low-rank factors")


def case() -> Case:
    tx = optax.adamw(1e-2, eps=1e-5)

    def step(lora: Any, opt_state: Any, base: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss_fn(lora: Any) -> jax.Array:
            h = x
            for w, p in zip(base, lora, strict=True):
                h = jnp.tanh(h @ w.astype(jnp.float32) + (h @ p["a"]) @ p["b"] * 2.0)
            return ((h - y) ** 2).mean()

        loss, grads = jax.value_and_grad(loss_fn)(lora)
        updates, opt_state = tx.update(grads, opt_state, lora)
        return optax.apply_updates(lora, updates), opt_state, loss

    keys = jax.random.split(jax.random.key(0), 6)
    base = [(jax.random.normal(k, (32, 32)) * 0.2).astype(jnp.bfloat16) for k in keys[:3]]
    lora = [{"a": jax.random.normal(k, (32, 4)) * 0.2, "b": jnp.zeros((4, 32))} for k in keys[3:]]
    batches = []
    for i in range(2):
        a, b = jax.random.split(jax.random.key(i))
        batches.append((base, jax.random.normal(a, (16, 32)), jax.random.normal(b, (16, 32))))
    return Case(step, (lora, tx.init(lora)), batches, donate=(0, 1), rtol=1e-3)
