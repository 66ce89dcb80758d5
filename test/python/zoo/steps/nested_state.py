"""A state of every kind of node: dataclass, NamedTuple, tuple, list, `None`, Python numbers; donated whole."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from zoo.harness import About, Case

ABOUT = About("JAX", "dataclass, NamedTuple, None and Python numbers in the state", ci=("stages",))


class Moments(NamedTuple):
    first: Any
    second: Any
    third: Any = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    params: Any
    moments: Moments
    history: tuple[jax.Array, ...]
    scheduler: Any
    step: Any
    rate: Any
    name: str = dataclasses.field(default="run", metadata={"static": True})


def step(state: State, x: jax.Array, y: jax.Array) -> Any:
    def loss_fn(p: Any) -> jax.Array:
        (w, b), (v, none) = p["layers"]
        assert none is None
        return ((jnp.tanh(x @ w + b) @ v - y) ** 2).mean()

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state.moments.first, grads)
    params = jax.tree.map(lambda p, m: p - state.rate * m, state.params, first)
    new = dataclasses.replace(
        state, params=params, moments=Moments(first, None), history=(*state.history[1:], loss),
        step=state.step + 1, rate=state.rate * 0.99,
    )  # fmt: skip
    return new, {"loss": loss, "nothing": None}


def case() -> Case:
    a, b = jax.random.split(jax.random.key(0))
    params = {
        "layers": [
            (jax.random.normal(a, (8, 16)) * 0.3, jnp.zeros(16)), (jax.random.normal(b, (16, 4)) * 0.3, None),
        ]
    }  # fmt: skip
    zeros = jax.tree.map(jnp.zeros_like, params)
    state = State(params, Moments(zeros, None), (jnp.float32(0), jnp.float32(0)), {}, 0, 0.1)
    batches = []
    for i in range(3):
        a, b = jax.random.split(jax.random.key(i))
        batches.append((jax.random.normal(a, (16, 8)), jax.random.normal(b, (16, 4))))
    return Case(step, (state,), batches, donate=(0,))
