"""Self-distillation (DINO): a teacher by moving average, a running centre of its outputs, two augmented views."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case

ABOUT = About("JAX", "DINO: EMA teacher, running centre, augmented views concatenated")
TX = optax.sgd(0.1, momentum=0.9)


def net(p: Any, x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x @ p["a"]) @ p["b"]


def step(state: dict[str, Any], x: jax.Array, key: jax.Array) -> Any:
    one, two = jax.random.split(key)
    views = [x + 0.1 * jax.random.normal(k, x.shape) for k in (one, two)]
    targets = [net(state["teacher"], v) for v in views]

    def loss_fn(p: Any) -> jax.Array:
        total = jnp.float32(0)
        for i, view in enumerate(views):
            target = jax.nn.softmax((targets[1 - i] - state["centre"]) / 0.04)
            total += -(target * jax.nn.log_softmax(net(p, view) / 0.1)).sum(-1).mean()
        return total / 2

    loss, grads = jax.value_and_grad(loss_fn)(state["student"])
    updates, opt = TX.update(grads, state["opt"])
    student = optax.apply_updates(state["student"], updates)
    teacher = jax.tree.map(lambda t, s: 0.99 * t + 0.01 * s, state["teacher"], student)
    centre = 0.9 * state["centre"] + 0.1 * jnp.concatenate(targets).mean(0)
    return {"student": student, "teacher": teacher, "centre": centre, "opt": opt}, loss


def case() -> Case:
    a, b = jax.random.split(jax.random.key(0))
    params = {"a": jax.random.normal(a, (16, 32)) * 0.2, "b": jax.random.normal(b, (32, 8)) * 0.2}
    state = {
        "student": params,
        "teacher": jax.tree.map(jnp.copy, params),
        "centre": jnp.zeros(8),
        "opt": TX.init(params),
    }
    batches = [(jax.random.normal(jax.random.key(i), (16, 16)), jax.random.key(9 + i)) for i in range(2)]
    return Case(step, (state,), batches, rtol=1e-3)
