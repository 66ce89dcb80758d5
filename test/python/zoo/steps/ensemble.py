"""A deep ensemble: members by `vmap` over parameters and optimizer states, each with its own key, disagreement out."""

from __future__ import annotations

from typing import Any

import jax
import optax

from zoo.common import classes, mlp_loss, mlp_params
from zoo.harness import About, Case

ABOUT = About("JAX", "ensemble: vmap over members' parameters and optimizer states")
TX = optax.adam(1e-2, eps=1e-5)
MEMBERS = 4


def step(params: Any, opt_state: Any, x: jax.Array, y: jax.Array, key: jax.Array) -> Any:
    def one(params: Any, opt_state: Any, key: jax.Array) -> Any:
        noisy = x + 0.1 * jax.random.normal(key, x.shape)
        loss, grads = jax.value_and_grad(mlp_loss)(params, noisy, y)
        updates, opt_state = TX.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    params, opt_state, losses = jax.vmap(one)(params, opt_state, jax.random.split(key, MEMBERS))
    return params, opt_state, {"losses": losses, "spread": losses.std()}


def case() -> Case:
    def member(key: jax.Array) -> Any:
        return jax.tree.map(lambda p: p + 0.1 * jax.random.normal(key, p.shape), mlp_params())

    params = jax.vmap(member)(jax.random.split(jax.random.key(0), MEMBERS))
    batches = [(*batch, jax.random.key(i)) for i, batch in enumerate(classes(2))]
    return Case(step, (params, jax.vmap(TX.init)(params)), batches, donate=(0, 1), rtol=1e-3)
