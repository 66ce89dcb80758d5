"""Random numbers of every kind: typed keys of threefry, rbg and unsafe_rbg, old uint32 keys, keys split in the step."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from zoo.harness import About, Case

ABOUT = About("JAX", "keys: threefry, rbg, unsafe_rbg, typed and raw", ci=("stages",))


def step(state: dict[str, Any], x: jax.Array) -> Any:
    new, noise = {}, []
    for name in ("threefry", "rbg", "unsafe_rbg", "raw"):
        new[name], use = jax.random.split(state[name])
        noise.append(jax.random.normal(jax.random.fold_in(use, 3), x.shape))

    def loss_fn(w: jax.Array) -> jax.Array:
        h = x
        for n in noise:
            h = jnp.tanh(h @ w) + 0.1 * n
        return (h**2).mean()

    loss, g = jax.value_and_grad(loss_fn)(state["w"])
    return {**new, "w": state["w"] - 0.1 * g}, loss


def case() -> Case:
    state: dict[str, Any] = {k: jax.random.key(i, impl=n) for i, (k, n) in enumerate(
        {"threefry": "threefry2x32", "rbg": "rbg", "unsafe_rbg": "unsafe_rbg"}.items()
    )}  # fmt: skip
    state |= {"raw": jax.random.PRNGKey(7), "w": jnp.eye(16) * 0.5}
    return Case(step, (state,), [(jax.random.normal(jax.random.key(i), (16, 16)),) for i in range(3)])
