"""DQN: a target network, double Q-learning, a Huber loss with importance weights, a soft target update under a cond."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case

ABOUT = About("JAX", "double DQN: target network, priorities out")
TX = optax.adam(1e-3, eps=1.5e-4)


def q(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    return jax.nn.relu(x @ p["a"]) @ p["b"]


def step(state: dict[str, Any], batch: dict[str, jax.Array]) -> Any:
    def loss_fn(params: Any) -> Any:
        chosen = jnp.take_along_axis(q(params, batch["obs"]), batch["action"][:, None], 1)[:, 0]
        best = q(params, batch["next"]).argmax(-1)
        following = jnp.take_along_axis(q(state["target"], batch["next"]), best[:, None], 1)[:, 0]
        target = jax.lax.stop_gradient(batch["reward"] + 0.99 * (1 - batch["done"]) * following)
        error = chosen - target
        return (batch["weight"] * optax.huber_loss(chosen, target)).mean(), jnp.abs(error)

    (loss, priority), grads = jax.value_and_grad(loss_fn, has_aux=True)(state["params"])
    updates, opt = TX.update(grads, state["opt"])
    params = optax.apply_updates(state["params"], updates)
    count = state["count"] + 1
    target = optax.periodic_update(params, state["target"], count, 2)
    return {"params": params, "target": target, "opt": opt, "count": count}, {"loss": loss, "priority": priority}


def case() -> Case:
    a, b = jax.random.split(jax.random.key(0))
    params = {"a": jax.random.normal(a, (6, 32)) * 0.3, "b": jax.random.normal(b, (32, 4)) * 0.3}
    target = jax.tree.map(jnp.copy, params)
    state = {"params": params, "target": target, "opt": TX.init(params), "count": jnp.zeros((), jnp.int32)}
    batches = []
    for i in range(3):
        k = jax.random.split(jax.random.key(i), 6)
        batches.append(
            ({"obs": jax.random.normal(k[0], (16, 6)), "next": jax.random.normal(k[1], (16, 6)),
              "action": jax.random.randint(k[2], (16,), 0, 4), "reward": jax.random.normal(k[3], (16,)),
              "done": (jax.random.uniform(k[4], (16,)) < 0.1) * 1.0, "weight": jax.random.uniform(k[5], (16,))},)
        )  # fmt: skip
    return Case(step, (state,), batches, donate=(0,), rtol=1e-3)
