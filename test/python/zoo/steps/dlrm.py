"""DLRM: embedding tables looked up and summed per bag, pairwise interactions, Adagrad."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case

ABOUT = About("JAX", "DLRM: tables, bags, interactions, Adagrad")


def case() -> Case:
    tx = optax.adagrad(0.05)

    def step(params: Any, opt_state: Any, batch: dict[str, jax.Array]) -> Any:
        def loss_fn(p: Any) -> jax.Array:
            dense = jax.nn.relu(batch["dense"] @ p["bottom"])
            bags = [jnp.take(t, batch["ids"][:, i], axis=0).sum(1) for i, t in enumerate(p["tables"])]
            features = jnp.stack([dense, *bags], axis=1)
            pairs = jnp.einsum("bid,bjd->bij", features, features)
            rows, columns = jnp.triu_indices(4, k=1)
            x = jnp.concatenate([dense, pairs[:, rows, columns]], -1)
            logits = (jax.nn.relu(x @ p["top1"]) @ p["top2"])[:, 0]
            return optax.sigmoid_binary_cross_entropy(logits, batch["click"]).mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    k = jax.random.split(jax.random.key(0), 6)
    params = {
        "bottom": jax.random.normal(k[0], (13, 16)) * 0.2,
        "tables": [jax.random.normal(k[1 + i], (n, 16)) * 0.2 for i, n in enumerate((100, 37, 64))],
        "top1": jax.random.normal(k[4], (22, 32)) * 0.2,
        "top2": jax.random.normal(k[5], (32, 1)) * 0.2,
    }
    batches = []
    for i in range(2):
        a, b, c = jax.random.split(jax.random.key(i), 3)
        batches.append(
            ({"dense": jax.random.normal(a, (16, 13)), "ids": jax.random.randint(b, (16, 3, 4), 0, 37),
              "click": (jax.random.uniform(c, (16,)) > 0.7) * 1.0},)
        )  # fmt: skip
    return Case(step, (params, tx.init(params)), batches, rtol=1e-3)
