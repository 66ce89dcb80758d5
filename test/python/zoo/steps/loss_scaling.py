"""Mixed precision in float16 with a dynamic loss scale: skipped steps when gradients overflow."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.common import classes, mlp_loss, mlp_params
from zoo.harness import About, Case

ABOUT = About("JAX", "float16 with dynamic loss scaling")


def case() -> Case:
    tx = optax.sgd(0.1, momentum=0.9)

    def step(state: dict[str, Any], x: jax.Array, y: jax.Array) -> Any:
        half = jax.tree.map(lambda p: p.astype(jnp.float16), state["params"])

        def loss_fn(p: Any) -> jax.Array:
            return mlp_loss(p, x.astype(jnp.float16), y).astype(jnp.float32) * state["scale"]

        loss, grads = jax.value_and_grad(loss_fn)(half)
        grads = jax.tree.map(lambda g: g.astype(jnp.float32) / state["scale"], grads)
        finite = jnp.all(jnp.stack([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]))
        updates, opt = tx.update(grads, state["opt"])
        params = optax.apply_updates(state["params"], updates)

        def keep(new: Any, old: Any) -> Any:
            return jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, old)

        good = jnp.where(finite, state["good"] + 1, 0)
        scale = jnp.where(finite, jnp.where(good >= 2, state["scale"] * 2, state["scale"]), state["scale"] / 2)
        new = {"params": keep(params, state["params"]), "opt": keep(opt, state["opt"]), "scale": scale, "good": good}
        return new, {"loss": loss / state["scale"], "finite": finite}

    params = mlp_params()
    state = {"params": params, "opt": tx.init(params), "scale": jnp.float32(1024.0), "good": jnp.int32(0)}
    return Case(step, (state,), classes(3), donate=(0,), rtol=2e-2)
