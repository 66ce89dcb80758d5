"""A U-Net of transposed convolutions with skip connections, dice and cross-entropy losses on ignored pixels."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case

ABOUT = About("Linen", "U-Net: transposed convolutions, ignored pixels")


class UNet(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        h1 = nn.relu(nn.Conv(8, (3, 3))(x))
        h2 = nn.relu(nn.Conv(16, (3, 3))(nn.max_pool(h1, (2, 2), (2, 2))))
        up = nn.ConvTranspose(8, (2, 2), strides=(2, 2))(h2)
        return nn.Conv(4, (1, 1))(nn.relu(nn.Conv(8, (3, 3))(jnp.concatenate([h1, up], -1))))


def case() -> Case:
    model, tx = UNet(), optax.adam(1e-2, eps=1e-5)

    def step(params: Any, opt_state: Any, images: jax.Array, labels: jax.Array) -> Any:
        def loss_fn(params: Any) -> jax.Array:
            logits = model.apply({"params": params}, images)
            valid = labels != 255
            entropy = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.where(valid, labels, 0))
            return jnp.where(valid, entropy, 0).sum() / valid.sum()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    params = model.init(jax.random.key(0), jnp.ones((1, 8, 8, 3)))["params"]
    batches = []
    for i in range(2):
        a, b = jax.random.split(jax.random.key(i))
        labels = jax.random.randint(b, (8, 8, 8), 0, 5)
        batches.append((jax.random.normal(a, (8, 8, 8, 3)), jnp.where(labels == 4, 255, labels)))
    return Case(step, (params, tx.init(params)), batches, rtol=1e-3)
