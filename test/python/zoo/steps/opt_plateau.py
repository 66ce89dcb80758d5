"""A scale reduced on a plateau of the loss, apply_if_finite around Adam."""

from __future__ import annotations

from typing import Any

import jax
import optax
import optax.contrib

from zoo.common import classes, mlp_loss, mlp_params
from zoo.harness import About, Case

ABOUT = About("Optax", "reduce_on_plateau, apply_if_finite")


def case() -> Case:
    tx = optax.chain(
        optax.apply_if_finite(optax.adam(1e-2, eps=1e-5), 3), optax.contrib.reduce_on_plateau(patience=1, cooldown=1)
    )

    def step(params: Any, opt_state: Any, x: jax.Array, y: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(mlp_loss)(params, x, y)
        updates, opt_state = tx.update(grads, opt_state, params, value=loss)
        return optax.apply_updates(params, updates), opt_state, loss

    params = mlp_params()
    return Case(step, (params, tx.init(params)), classes(3))
