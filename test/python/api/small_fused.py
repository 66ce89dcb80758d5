"""A layer of attention whose queries, keys and values come from one matrix, with Adam: its tests share it.

The planner stores that matrix, its bias and their moments with a dimension of their own for the three.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

WIDTH = 32
STORED = {"qkv": (WIDTH, 3, WIDTH), "bias": (3, WIDTH)}
# The gradient of the keys' bias is zero but for rounding: without a large eps, Adam would make steps of that noise.
OPTIMIZER = optax.adam(1e-2, eps=1e-3)


def init(key: jax.Array) -> dict[str, Any]:
    keys = jax.random.split(key)
    params = {
        "qkv": jax.random.normal(keys[0], (WIDTH, 3 * WIDTH)) / 6,
        "bias": jnp.arange(3.0 * WIDTH) / 100,
        "out": jax.random.normal(keys[1], (WIDTH, WIDTH)) / 6,
    }
    return {"params": params, "opt": OPTIMIZER.init(params)}


def attend(params: Any, x: Any) -> jax.Array:
    q, k, v = jnp.split(x @ params["qkv"] + params["bias"], 3, axis=-1)
    return (jax.nn.softmax(q @ k.swapaxes(-1, -2)) @ v) @ params["out"]


def loss_of(params: Any, x: Any) -> jax.Array:
    return jnp.mean((attend(params, x) - x) ** 2)


def train_step(state: dict[str, Any], x: Any) -> tuple[dict[str, Any], jax.Array]:
    loss, grads = jax.value_and_grad(loss_of)(state["params"], x)
    updates, opt = OPTIMIZER.update(grads, state["opt"])
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, loss


def eval_step(state: dict[str, Any], x: Any) -> jax.Array:
    return loss_of(state["params"], x)


def abstract_state() -> Any:
    return jax.eval_shape(init, jax.random.key(0))


def make_batch(size: int = 8, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal((size, 16, WIDTH), dtype=np.float32)
