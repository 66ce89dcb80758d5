"""The model that the optimizers of the zoo train: an MLP as plain JAX, and how it is trained with Optax."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.harness import Case


def mlp_params() -> list[dict[str, jax.Array]]:
    keys = jax.random.split(jax.random.key(0), 3)
    sizes = [(16, 32), (32, 32), (32, 8)]
    return [
        {"w": jax.random.normal(k, s) / s[0] ** 0.5, "b": jnp.zeros(s[1])} for k, s in zip(keys, sizes, strict=True)
    ]


def mlp_loss(params: list[dict[str, jax.Array]], x: jax.Array, y: jax.Array) -> jax.Array:
    for p in params[:-1]:
        x = jnp.tanh(x @ p["w"] + p["b"])
    logits = x @ params[-1]["w"] + params[-1]["b"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def classes(steps: int, batch: int = 16) -> list[tuple[jax.Array, jax.Array]]:
    found = []
    for i in range(steps):
        a, b = jax.random.split(jax.random.key(i))
        found.append((jax.random.normal(a, (batch, 16)), jax.random.randint(b, (batch,), 0, 8)))
    return found


def trained_mlp(tx: optax.GradientTransformation, steps: int = 2, **options: Any) -> Case:
    """The MLP under an optimizer, as its documentation shows it."""

    def step(params: Any, opt_state: Any, x: jax.Array, y: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(mlp_loss)(params, x, y)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    params = mlp_params()
    return Case(step, (params, tx.init(params)), classes(steps), donate=(0, 1), **options)
