"""CLIP: two towers, a temperature, and a loss in which every image meets every text."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case, Refused

ABOUT = About(
    "JAX", "CLIP: contrastive loss over the batch",
    stages=Refused("brings examples together with other examples", "every example meets every other"),
)  # fmt: skip


def tower(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    y = jax.nn.gelu(x @ p["a"]) @ p["b"]
    return y / jnp.linalg.norm(y, axis=-1, keepdims=True)


def case() -> Case:
    tx = optax.adamw(1e-2, eps=1e-5)

    def step(params: Any, opt_state: Any, images: jax.Array, texts: jax.Array) -> Any:
        def loss_fn(p: Any) -> jax.Array:
            logits = jnp.exp(p["t"]) * tower(p["image"], images) @ tower(p["text"], texts).T
            labels = jnp.arange(logits.shape[0])
            entropy = optax.softmax_cross_entropy_with_integer_labels
            return (entropy(logits, labels).mean() + entropy(logits.T, labels).mean()) / 2

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    k = jax.random.split(jax.random.key(0), 4)
    params = {
        "image": {"a": jax.random.normal(k[0], (24, 32)) * 0.2, "b": jax.random.normal(k[1], (32, 16)) * 0.2},
        "text": {"a": jax.random.normal(k[2], (12, 32)) * 0.2, "b": jax.random.normal(k[3], (32, 16)) * 0.2},
        "t": jnp.log(1 / 0.07),
    }
    batches = []
    for i in range(2):
        a, b = jax.random.split(jax.random.key(i))
        batches.append((jax.random.normal(a, (16, 24)), jax.random.normal(b, (16, 12))))
    return Case(step, (params, tx.init(params)), batches, rtol=1e-3)
