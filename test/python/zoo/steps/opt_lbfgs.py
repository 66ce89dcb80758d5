"""L-BFGS with a zoom line search: the loss is evaluated in a loop inside the update."""

from __future__ import annotations

from typing import Any

import jax
import optax

from zoo.common import classes, mlp_loss, mlp_params
from zoo.harness import About, Case, Refused

ABOUT = About(
    "Optax", "L-BFGS with zoom line search (while loop over losses)",
    stages=Refused("not sync-free", "the line search needs the loss of all examples many times"),
)  # fmt: skip


def case() -> Case:
    tx = optax.lbfgs(memory_size=3, linesearch=optax.scale_by_zoom_linesearch(max_linesearch_steps=5))

    def step(params: Any, opt_state: Any, x: jax.Array, y: jax.Array) -> Any:
        def value(p: Any) -> jax.Array:
            return mlp_loss(p, x, y)

        loss, grads = optax.value_and_grad_from_state(value)(params, state=opt_state)
        updates, opt_state = tx.update(grads, opt_state, params, value=loss, grad=grads, value_fn=value)
        return optax.apply_updates(params, updates), opt_state, loss

    params = mlp_params()
    return Case(step, (params, tx.init(params)), classes(2), rtol=5e-3)
