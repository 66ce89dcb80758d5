"""Evolution strategies: a population of perturbed parameters by vmap, ranked rewards, no gradient at all."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from zoo.harness import About, Case

ABOUT = About("JAX", "evolution strategies: vmapped population, ranks")


def step(params: dict[str, jax.Array], x: jax.Array, y: jax.Array, key: jax.Array) -> Any:
    def fitness(p: dict[str, jax.Array]) -> jax.Array:
        return -((jnp.tanh(x @ p["a"]) @ p["b"] - y) ** 2).mean()

    keys = jax.random.split(key, len(params))
    noise = {n: jax.random.normal(k, (16, *params[n].shape)) for n, k in zip(sorted(params), keys, strict=True)}
    scores = jax.vmap(lambda e: fitness({n: params[n] + 0.1 * e[n] for n in params}))(noise)
    ranks = jnp.argsort(jnp.argsort(scores)) / 15.0 - 0.5
    update = {n: jnp.tensordot(ranks, noise[n], axes=1) / 16 for n in params}
    return {n: params[n] + 0.5 * update[n] for n in params}, scores.max()


def case() -> Case:
    a, b = jax.random.split(jax.random.key(0))
    params = {"a": jax.random.normal(a, (8, 16)) * 0.3, "b": jax.random.normal(b, (16, 1)) * 0.3}
    batches = []
    for i in range(2):
        x = jax.random.normal(jax.random.key(i), (16, 8))
        batches.append((x, x.sum(-1, keepdims=True), jax.random.key(i)))
    return Case(step, (params,), batches, rtol=1e-3)
