"""Lookahead: fast and slow parameters as a pair, synchronised every k steps."""

from __future__ import annotations

from typing import Any

import jax
import optax

from zoo.common import classes, mlp_loss, mlp_params
from zoo.harness import About, Case

ABOUT = About("Optax", "Lookahead: slow and fast parameters")


def case() -> Case:
    tx = optax.lookahead(optax.sgd(0.1), sync_period=2, slow_step_size=0.5)

    def step(params: Any, opt_state: Any, x: jax.Array, y: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(mlp_loss)(params.fast, x, y)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    params = optax.LookaheadParams.init_synced(mlp_params())
    return Case(step, (params, tx.init(params)), classes(3), donate=(0, 1))
