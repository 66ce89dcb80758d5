"""Scatter updates of every combiner: `at[].add`, `max`, `set`, `multiply`, segment sums and means by group."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from zoo.harness import About, Case, Refused

ABOUT = About(
    "JAX", "at[].add/max/set/multiply, segment_sum by class", ci=("one",),
    stages=Refused("not sync-free", "examples need the mean of their class"),
)  # fmt: skip


def step(state: dict[str, jax.Array], x: jax.Array, group: jax.Array) -> Any:
    def loss_fn(w: jax.Array) -> jax.Array:
        h = jnp.tanh(x @ w)
        totals = jax.ops.segment_sum(h, group, num_segments=5)
        counts = jax.ops.segment_sum(jnp.ones_like(group, jnp.float32), group, num_segments=5)
        means = totals / jnp.maximum(counts, 1)[:, None]
        return ((h - means[group]) ** 2).mean() - 0.1 * (means**2).mean()

    loss, g = jax.value_and_grad(loss_fn)(state["w"])
    h = jnp.tanh(x @ state["w"])
    new = {
        "w": state["w"] - 0.1 * g,
        "count": state["count"].at[group].add(1),
        "best": state["best"].at[group].max(h.max(-1)),
        "decay": state["decay"].at[group].multiply(0.9),
        "last": state["last"].at[jnp.arange(4)].set(h[:4, 0]),
    }
    return new, loss


def case() -> Case:
    state = {
        "w": jax.random.normal(jax.random.key(0), (8, 16)) * 0.3, "count": jnp.zeros(5, jnp.int32),
        "best": jnp.full(5, -jnp.inf), "decay": jnp.ones(5), "last": jnp.zeros(8),
    }  # fmt: skip
    batches = []
    for i in range(2):
        a, b = jax.random.split(jax.random.key(i))
        batches.append((jax.random.normal(a, (16, 8)), jax.random.randint(b, (16,), 0, 5)))
    return Case(step, (state,), batches)
