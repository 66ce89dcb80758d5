"""An ordered callback in a step, which jax has on one device only."""

from __future__ import annotations

from typing import Any

import jax
from jax.experimental import io_callback

from zoo.common import classes, mlp_loss, mlp_params
from zoo.harness import About, Case, Refused

_ORDERED = Refused("ordered", "ordered callbacks are jax's for one device", None)
ABOUT = About("JAX", "io_callback(ordered=True)", one=_ORDERED, stages=_ORDERED)


def step(params: Any, x: jax.Array, y: jax.Array) -> Any:
    loss, grads = jax.value_and_grad(mlp_loss)(params, x, y)
    io_callback(lambda _: None, None, loss, ordered=True)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def case() -> Case:
    return Case(step, (mlp_params(),), classes(2))
