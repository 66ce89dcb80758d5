"""Calls of the host from a step: `io_callback` that returns a rate, `jax.debug.callback` of the gradient's norm."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import io_callback

from zoo.common import classes, mlp_loss, mlp_params
from zoo.harness import About, Case

ABOUT = About("JAX", "io_callback that returns a rate, debug.callback of a gradient's norm")
SEEN: list[float] = []


def rate(loss: Any) -> Any:
    return np.float32(0.1 if np.isfinite(loss) else 0.0)


def step(params: Any, x: jax.Array, y: jax.Array) -> Any:
    loss, grads = jax.value_and_grad(mlp_loss)(params, x, y)
    jax.debug.callback(lambda norm: SEEN.append(float(norm)), optax.global_norm(grads))
    found = io_callback(rate, jax.ShapeDtypeStruct((), jnp.float32), loss)
    return jax.tree.map(lambda p, g: p - found * g, params, grads), loss


def case() -> Case:
    return Case(step, (mlp_params(),), classes(2))
