"""Distillation: a teacher that is only read, a temperature, the KL divergence beside the labels' loss."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.common import classes, mlp_params
from zoo.harness import About, Case

ABOUT = About("JAX", "distillation: a teacher in the arguments, KL divergence")


def logits(params: Any, x: jax.Array) -> jax.Array:
    for p in params[:-1]:
        x = jnp.tanh(x @ p["w"] + p["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def case() -> Case:
    tx = optax.adam(1e-2, eps=1e-5)
    teacher = jax.tree.map(lambda w: w * 1.5, mlp_params())

    def step(params: Any, opt_state: Any, teacher: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss_fn(p: Any) -> jax.Array:
            ours = logits(p, x)
            soft = jax.nn.softmax(jax.lax.stop_gradient(logits(teacher, x)) / 3.0)
            kl = optax.kl_divergence(jax.nn.log_softmax(ours / 3.0), soft).mean()
            return 9.0 * kl + optax.softmax_cross_entropy_with_integer_labels(ours, y).mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    params = mlp_params()
    return Case(step, (params, tx.init(params)), [(teacher, *b) for b in classes(2)], rtol=1e-3)
