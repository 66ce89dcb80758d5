"""`python wheel_step.py ROOT`: a training step under a plan on 8 CPU devices, with the rhino that pip installed.

Exits with an error if that is the repository's, or if the losses are not those of one device.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import rhino


def loss(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((jax.nn.relu(x @ params["up"]) @ params["down"] - y) ** 2)


def train_step(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    value, grads = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def init(key: jax.Array) -> dict[str, jax.Array]:
    up, down = jax.random.split(key)
    return {"up": jax.random.normal(up, (64, 256)) / 8, "down": jax.random.normal(down, (256, 64)) / 16}


def main() -> None:
    assert not Path(rhino.__file__).is_relative_to(Path(sys.argv[1]).resolve()), rhino.__file__
    assert len(jax.devices()) == 8, jax.devices()
    key, x, y = jax.random.key(0), jnp.ones((32, 64)), jnp.zeros((32, 64))
    step = rhino.parallelize(train_step, donate_argnums=(0,))
    plan = step.plan(jax.eval_shape(init, key), x, y)
    assert "Plan for local" in plan.summary()
    ours, theirs = step.init(init, key), init(key)
    for _ in range(3):
        ours, one = step(ours, x, y)
        theirs, other = jax.jit(train_step)(theirs, x, y)
        np.testing.assert_allclose(one, other, rtol=1e-5)


main()
