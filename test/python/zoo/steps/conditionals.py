"""Control flow that depends on data: stochastic depth by `cond`, a `switch` over experts, a clipping `cond`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from zoo.harness import About, Case

ABOUT = About("JAX", "cond (stochastic depth), switch, clipping under cond", ci=("one",))


def step(params: dict[str, jax.Array], x: jax.Array, key: jax.Array) -> Any:
    keep, choose = jax.random.split(key)

    def loss_fn(p: dict[str, jax.Array]) -> jax.Array:
        h = x @ p["in"]
        for i in range(2):
            go = jax.random.bernoulli(jax.random.fold_in(keep, i), 0.7)
            h = jax.lax.cond(go, lambda h, w: h + jnp.tanh(h @ w), lambda h, _: h, h, p["blocks"][i])
        branch = jax.random.randint(choose, (), 0, 3)
        h = jax.lax.switch(branch, [lambda h: h, lambda h: jnp.tanh(h @ p["in"].T) @ p["in"], jnp.sin], h)
        return (h**2).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    norm = jnp.sqrt(sum((g**2).sum() for g in jax.tree.leaves(grads)))
    grads = jax.lax.cond(norm > 0.1, lambda g: jax.tree.map(lambda t: t * 0.1 / norm, g), lambda g: g, grads)
    return jax.tree.map(lambda p, g: p - g, params, grads), loss


def case() -> Case:
    a, b = jax.random.split(jax.random.key(0))
    params = {"in": jax.random.normal(a, (8, 16)) * 0.3, "blocks": jax.random.normal(b, (2, 16, 16)) * 0.3}
    batches = [(jax.random.normal(jax.random.key(i), (16, 8)), jax.random.key(i)) for i in range(3)]
    return Case(step, (params,), batches)
