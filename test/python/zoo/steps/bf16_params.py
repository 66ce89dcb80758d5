"""Parameters in bfloat16 with float32 master copies in the optimizer's state, stochastic rounding on the way back."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from zoo.common import classes, mlp_loss, mlp_params
from zoo.harness import About, Case

ABOUT = About("JAX", "bf16 parameters, f32 masters, stochastic rounding by bits")


def rounded(x: jax.Array, key: jax.Array) -> jax.Array:
    noise = jax.random.bits(key, x.shape, jnp.uint16).astype(jnp.uint32)
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32) + noise
    return jax.lax.bitcast_convert_type(bits & jnp.uint32(0xFFFF0000), jnp.float32).astype(jnp.bfloat16)


def step(state: dict[str, Any], x: jax.Array, y: jax.Array, key: jax.Array) -> Any:
    loss, grads = jax.value_and_grad(lambda p: mlp_loss(p, x.astype(jnp.bfloat16), y))(state["params"])
    master = jax.tree.map(lambda m, g: m - 0.1 * g.astype(jnp.float32), state["master"], grads)
    leaves, tree = jax.tree.flatten(master)
    keys = jax.tree.unflatten(tree, list(jax.random.split(key, len(leaves))))
    return {"params": jax.tree.map(rounded, master, keys), "master": master}, loss.astype(jnp.float32)


def case() -> Case:
    master = mlp_params()
    state = {"params": jax.tree.map(lambda p: p.astype(jnp.bfloat16), master), "master": master}
    batches = [(*b, jax.random.key(i)) for i, b in enumerate(classes(2))]
    return Case(step, (state,), batches, donate=(0,), rtol=3e-2)
