"""SAM: the gradient at the worst neighbour of the parameters, which a first gradient finds."""

from __future__ import annotations

from typing import Any

import jax
import optax

from zoo.common import classes, mlp_loss, mlp_params
from zoo.harness import About, Case, Refused

ABOUT = About(
    "JAX", "SAM: gradient at perturbed parameters",
    stages=Refused("not sync-free", "the second gradient needs the first of all examples"),
)  # fmt: skip


def case() -> Case:
    tx = optax.sgd(0.1, momentum=0.9)

    def step(params: Any, opt_state: Any, x: jax.Array, y: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(mlp_loss)(params, x, y)
        norm = optax.global_norm(grads)
        worst = jax.tree.map(lambda p, g: p + 0.05 * g / (norm + 1e-12), params, grads)
        grads = jax.grad(mlp_loss)(worst, x, y)
        updates, opt_state = tx.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    params = mlp_params()
    return Case(step, (params, tx.init(params)), classes(2))
