"""Tied embeddings and a layer applied four times (ALBERT), rematerialised by name."""

from __future__ import annotations

from typing import Any

import jax
import optax
from jax.ad_checkpoint import checkpoint_name

from zoo.harness import About, Case

ABOUT = About("JAX", "ALBERT: one layer four times, remat by names")


def layer(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    h = checkpoint_name(jax.nn.gelu(x @ p["up"]), "hidden")
    return x + jax.nn.standardize(h @ p["down"])


def case() -> Case:
    tx = optax.adamw(1e-2, eps=1e-5)

    def step(params: Any, opt_state: Any, tokens: jax.Array) -> Any:
        def loss_fn(p: Any) -> jax.Array:
            policy = jax.checkpoint_policies.save_only_these_names("hidden")
            x = p["embed"][tokens]
            for _ in range(4):
                x = jax.checkpoint(layer, policy=policy)(p["layer"], x)
            logits = x[:, :-1] @ p["embed"].T
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    k = jax.random.split(jax.random.key(0), 3)
    params = {
        "embed": jax.random.normal(k[0], (64, 16)) * 0.3,
        "layer": {"up": jax.random.normal(k[1], (16, 64)) * 0.2, "down": jax.random.normal(k[2], (64, 16)) * 0.2},
    }
    batches = [(jax.random.randint(jax.random.key(i), (8, 12), 0, 64),) for i in range(2)]
    return Case(step, (params, tx.init(params)), batches, donate=(0, 1), rtol=1e-3)
