"""SAC: critic, actor and temperature, each with its optimizer, samples of a squashed Gaussian."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case, Refused

ABOUT = About(
    "JAX", "SAC: twin critics, actor, temperature",
    stages=Refused("not sync-free", "the actor's loss needs the critics already updated"),
)  # fmt: skip
TX = optax.adam(3e-3, eps=1e-5)


def mlp(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    return jax.nn.relu(x @ p["a"]) @ p["b"]


def sample(p: Any, obs: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    mean, log_std = jnp.split(mlp(p, obs), 2, -1)
    log_std = jnp.clip(log_std, -5, 2)
    raw = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
    logp = jax.scipy.stats.norm.logpdf(raw, mean, jnp.exp(log_std)).sum(-1)
    return jnp.tanh(raw), logp - jnp.log1p(-(jnp.tanh(raw) ** 2) + 1e-6).sum(-1)


def critics(p: Any, obs: jax.Array, action: jax.Array) -> jax.Array:
    return jax.vmap(mlp, in_axes=(0, None))(p, jnp.concatenate([obs, action], -1))[..., 0]


def step(state: dict[str, Any], batch: dict[str, jax.Array], key: jax.Array) -> Any:
    k1, k2 = jax.random.split(key)
    alpha = jnp.exp(state["log_alpha"])

    def critic_loss(p: Any) -> jax.Array:
        action, logp = sample(state["actor"], batch["next"], k1)
        following = critics(state["target"], batch["next"], action).min(0) - alpha * logp
        target = jax.lax.stop_gradient(batch["reward"] + 0.99 * following)
        return ((critics(p, batch["obs"], batch["action"]) - target) ** 2).mean()

    c_loss, grads = jax.value_and_grad(critic_loss)(state["critic"])
    updates, critic_opt = TX.update(grads, state["critic_opt"])
    critic = optax.apply_updates(state["critic"], updates)

    def actor_loss(p: Any) -> Any:
        action, logp = sample(p, batch["obs"], k2)
        return (alpha * logp - critics(critic, batch["obs"], action).min(0)).mean(), logp.mean()

    (a_loss, entropy), grads = jax.value_and_grad(actor_loss, has_aux=True)(state["actor"])
    updates, actor_opt = TX.update(grads, state["actor_opt"])
    log_alpha = state["log_alpha"] + 0.01 * (entropy - 2.0)
    new = {
        "critic": critic, "critic_opt": critic_opt, "actor": optax.apply_updates(state["actor"], updates),
        "actor_opt": actor_opt, "log_alpha": log_alpha,
        "target": optax.incremental_update(critic, state["target"], 0.05),
    }  # fmt: skip
    return new, {"critic": c_loss, "actor": a_loss}


def case() -> Case:
    k = jax.random.split(jax.random.key(0), 4)
    critic = {"a": jax.random.normal(k[0], (2, 8, 32)) * 0.3, "b": jax.random.normal(k[1], (2, 32, 1)) * 0.3}
    actor = {"a": jax.random.normal(k[2], (6, 32)) * 0.3, "b": jax.random.normal(k[3], (32, 4)) * 0.1}
    state = {
        "critic": critic, "critic_opt": TX.init(critic), "actor": actor, "actor_opt": TX.init(actor),
        "target": critic, "log_alpha": jnp.float32(-1.0),
    }  # fmt: skip
    batches = []
    for i in range(2):
        k = jax.random.split(jax.random.key(i), 5)
        batches.append(
            ({"obs": jax.random.normal(k[0], (16, 6)), "next": jax.random.normal(k[1], (16, 6)),
              "action": jnp.tanh(jax.random.normal(k[2], (16, 2))), "reward": jax.random.normal(k[3], (16,))}, k[4])
        )  # fmt: skip
    return Case(step, (state,), batches, rtol=1e-3)
