"""A data loader's batches: NumPy's int64 and float64, the last one smaller; the rate is a Python float at first."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zoo.common import mlp_loss, mlp_params
from zoo.harness import About, Case

ABOUT = About("JAX", "NumPy's 64-bit batches, a smaller last one, a Python float in the state", ci=("stages",))


def step(state: dict[str, Any], x: jax.Array, y: jax.Array) -> Any:
    loss, grads = jax.value_and_grad(mlp_loss)(state["params"], x, y)
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, state["velocity"], grads)
    params = jax.tree.map(lambda p, v: p - state["rate"] * v, state["params"], velocity)
    return {"params": params, "velocity": velocity, "rate": state["rate"] * 0.99}, loss


def case() -> Case:
    rng, params = np.random.default_rng(0), mlp_params()
    state = {"params": params, "velocity": jax.tree.map(jnp.zeros_like, params), "rate": 0.1}
    batches = [(rng.normal(size=(size, 16)), rng.integers(0, 8, size)) for size in (16, 16, 6)]
    return Case(step, (state,), batches)
