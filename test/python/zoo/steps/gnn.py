"""A graph network: messages along edges, `jax.ops.segment_sum` to nodes, a mask of training nodes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case, Refused

ABOUT = About(
    "JAX", "graph network: segment_sum over edges, masked nodes", ci=("mesh",),
    stages=Refused("not sync-free", "no batch: nodes are neighbours of each other"),
)  # fmt: skip
NODES, EDGES = 32, 96


def case() -> Case:
    tx = optax.adam(1e-2)

    def step(params: Any, opt_state: Any, graph: dict[str, jax.Array]) -> Any:
        def loss_fn(p: Any) -> jax.Array:
            h = graph["nodes"]
            degree = jax.ops.segment_sum(jnp.ones(EDGES), graph["receivers"], NODES)
            for layer in p["layers"]:
                messages = jax.nn.relu(jnp.concatenate([h[graph["senders"]], h[graph["receivers"]]], -1) @ layer["m"])
                pooled = jax.ops.segment_sum(messages, graph["receivers"], NODES) / jnp.maximum(degree, 1)[:, None]
                best = jax.ops.segment_max(messages, graph["receivers"], NODES)
                h = jnp.tanh(h @ layer["s"] + pooled + jnp.where(jnp.isfinite(best), best, 0))
            losses = optax.softmax_cross_entropy_with_integer_labels(h @ p["head"], graph["labels"])
            return (losses * graph["mask"]).sum() / graph["mask"].sum()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    k = jax.random.split(jax.random.key(0), 5)
    params = {
        "layers": [
            {"m": jax.random.normal(k[2 * i], (32, 16)) * 0.2, "s": jax.random.normal(k[2 * i + 1], (16, 16)) * 0.2}
            for i in range(2)
        ],
        "head": jax.random.normal(k[4], (16, 5)),
    }
    batches = []
    for i in range(2):
        k = jax.random.split(jax.random.key(i), 5)
        batches.append(
            ({"nodes": jax.random.normal(k[0], (NODES, 16)), "senders": jax.random.randint(k[1], (EDGES,), 0, NODES),
              "receivers": jax.random.randint(k[2], (EDGES,), 0, NODES),
              "labels": jax.random.randint(k[3], (NODES,), 0, 5),
              "mask": (jax.random.uniform(k[4], (NODES,)) > 0.5) * 1.0},)
        )  # fmt: skip
    return Case(step, (params, tx.init(params)), batches, rtol=1e-3)
