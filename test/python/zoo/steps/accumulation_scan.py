"""Gradient accumulation as it is mostly written: a scan over micro-batches of the step's own batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.common import classes, mlp_loss, mlp_params
from zoo.harness import About, Case

ABOUT = About("JAX", "gradient accumulation by lax.scan", ci=("stages",))


def case() -> Case:
    tx = optax.adam(1e-2, eps=1e-5)

    def step(params: Any, opt_state: Any, x: jax.Array, y: jax.Array) -> Any:
        def micro(carry: Any, batch: Any) -> Any:
            total, grads = carry
            loss, g = jax.value_and_grad(mlp_loss)(params, *batch)
            return (total + loss, jax.tree.map(jnp.add, grads, g)), None

        zeros = (jnp.float32(0), jax.tree.map(jnp.zeros_like, params))
        split = jax.tree.map(lambda t: t.reshape(4, -1, *t.shape[1:]), (x, y))
        (loss, grads), _ = jax.lax.scan(micro, zeros, split)
        grads = jax.tree.map(lambda g: g / 4, grads)
        updates, opt_state = tx.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss / 4

    params = mlp_params()
    return Case(step, (params, tx.init(params)), classes(2), rtol=1e-3)
