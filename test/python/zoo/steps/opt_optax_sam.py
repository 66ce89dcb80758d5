"""optax.contrib.sam, opaque mode: the perturbation and the update inside one optimizer that is given the gradient."""

from __future__ import annotations

from typing import Any

import jax
import optax
import optax.contrib

from zoo.common import classes, mlp_loss, mlp_params
from zoo.harness import About, Case, Refused

ABOUT = About(
    "Optax", "contrib.sam, opaque mode",
    stages=Refused("not sync-free", "the second gradient needs the first of all examples"),
)  # fmt: skip


def case() -> Case:
    adversary = optax.chain(optax.contrib.normalize(), optax.sgd(0.05))
    tx = optax.contrib.sam(optax.adam(1e-2, eps=1e-5), adversary, sync_period=2, opaque_mode=True)

    def step(params: Any, opt_state: Any, x: jax.Array, y: jax.Array) -> Any:
        def grad_fn(p: Any, _: Any) -> Any:
            return jax.grad(mlp_loss)(p, x, y)

        loss, grads = jax.value_and_grad(mlp_loss)(params, x, y)
        updates, opt_state = tx.update(grads, opt_state, params, grad_fn=grad_fn)
        return optax.apply_updates(params, updates), opt_state, loss

    params = mlp_params()
    return Case(step, (params, tx.init(params)), classes(2), rtol=1e-3)
