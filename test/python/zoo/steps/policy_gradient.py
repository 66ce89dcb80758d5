"""Actor-critic: `logits[jnp.arange(n), actions]`, the idiom for what was chosen, and counts of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.common import mlp_params
from zoo.harness import About, Case

ABOUT = About("JAX", "actor-critic: log-probabilities by [arange(n), actions], counts by .at[].set")
TX = optax.rmsprop(1e-2, eps=1e-3)


def net(params: Any, x: jax.Array) -> jax.Array:
    for p in params[:-1]:
        x = jnp.tanh(x @ p["w"] + p["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def step(params: Any, opt_state: Any, batch: dict[str, jax.Array]) -> Any:
    n = batch["actions"].shape[0]

    def loss_fn(params: Any) -> Any:
        out = net(params, batch["observations"])
        logits, values = out[:, :7], out[:, 7]
        log_probs = jax.nn.log_softmax(logits)
        chosen = log_probs[jnp.arange(n), batch["actions"]]
        advantage = jax.lax.stop_gradient(batch["returns"] - values)
        entropy = -(jnp.exp(log_probs) * log_probs).sum(-1)
        taken = jnp.zeros((n, 7)).at[jnp.arange(n), batch["actions"]].set(1.0)
        loss = -(chosen * advantage) + 0.5 * (batch["returns"] - values) ** 2 - 0.01 * entropy
        return loss.mean(), taken.sum(0)

    (loss, taken), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    updates, opt_state = TX.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, {"loss": loss, "taken": taken}


def case() -> Case:
    params, batches = mlp_params(), []
    for i in range(2):
        a, b, c = jax.random.split(jax.random.key(i), 3)
        batch = {
            "observations": jax.random.normal(a, (16, 16)), "actions": jax.random.randint(b, (16,), 0, 7),
            "returns": jax.random.normal(c, (16,)),
        }  # fmt: skip
        batches.append((batch,))
    return Case(step, (params, TX.init(params)), batches, donate=(0, 1), rtol=1e-3)
