"""Static arguments: a configuration and a flag; the second call has another value and is another program."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from zoo.harness import About, Case

ABOUT = About("JAX", "static arguments, which change between calls")


@dataclasses.dataclass(frozen=True)
class Config:
    activation: str
    rate: float


def step(params: dict[str, jax.Array], config: Config, train: bool, x: jax.Array) -> Any:
    def loss_fn(p: dict[str, jax.Array]) -> jax.Array:
        return (getattr(jax.nn, config.activation)(x @ p["a"]) @ p["b"] ** 2).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    if not train:
        return params, loss
    return jax.tree.map(lambda p, g: p - config.rate * g, params, grads), loss


def case() -> Case:
    a, b = jax.random.split(jax.random.key(0))
    params = {"a": jax.random.normal(a, (8, 16)) * 0.3, "b": jax.random.normal(b, (16, 4)) * 0.3}
    x = jax.random.normal(jax.random.key(5), (16, 8))
    calls = [(Config("gelu", 0.1), True, x), (Config("relu", 0.1), True, x), (Config("relu", 0.1), False, x)]
    return Case(step, (params,), calls, static=(1, 2))
