"""PPO: epochs over shuffled minibatches inside the step, advantages by a reversed scan (GAE)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case, Refused

ABOUT = About(
    "JAX", "PPO: GAE by reversed scan, epochs over shuffled minibatches",
    stages=Refused("'stablehlo.slice' needs all examples at once", "several updates a step, over shuffled examples"),
)  # fmt: skip


def forward(p: dict[str, jax.Array], obs: jax.Array) -> tuple[jax.Array, jax.Array]:
    h = jnp.tanh(obs @ p["torso"])
    return h @ p["policy"], (h @ p["value"])[..., 0]


def case() -> Case:
    tx = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(3e-4, eps=1e-5))

    def step(state: Any, rollout: dict[str, jax.Array], key: jax.Array) -> Any:
        params, opt_state = state
        _, values = forward(params, rollout["obs"])
        _, last = forward(params, rollout["last"])

        def back(carry: Any, t: Any) -> Any:
            gae, following = carry
            reward, done, value = t
            delta = reward + 0.99 * following * (1 - done) - value
            gae = delta + 0.99 * 0.95 * (1 - done) * gae
            return (gae, value), gae

        _, advantages = jax.lax.scan(
            back, (jnp.zeros_like(last), last), (rollout["reward"], rollout["done"], values), reverse=True
        )
        data = {**rollout, "advantage": advantages, "target": advantages + values}
        del data["last"]
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), data)

        def loss_fn(params: Any, mb: dict[str, jax.Array]) -> jax.Array:
            logits, value = forward(params, mb["obs"])
            logp = jnp.take_along_axis(jax.nn.log_softmax(logits), mb["action"][:, None], 1)[:, 0]
            ratio = jnp.exp(logp - mb["logp"])
            adv = (mb["advantage"] - mb["advantage"].mean()) / (mb["advantage"].std() + 1e-8)
            policy = -jnp.minimum(ratio * adv, jnp.clip(ratio, 0.8, 1.2) * adv).mean()
            entropy = -(jax.nn.softmax(logits) * jax.nn.log_softmax(logits)).sum(-1).mean()
            return policy + 0.5 * ((value - mb["target"]) ** 2).mean() - 0.01 * entropy

        def epoch(carry: Any, key: jax.Array) -> Any:
            order = jax.random.permutation(key, 64)
            minibatches = jax.tree.map(lambda x: x[order].reshape(4, 16, *x.shape[1:]), flat)

            def update(carry: Any, mb: Any) -> Any:
                params, opt_state = carry
                loss, grads = jax.value_and_grad(loss_fn)(params, mb)
                updates, opt_state = tx.update(grads, opt_state)
                return (optax.apply_updates(params, updates), opt_state), loss

            return jax.lax.scan(update, carry, minibatches)

        return jax.lax.scan(epoch, (params, opt_state), jax.random.split(key, 2))

    a, b, c = jax.random.split(jax.random.key(0), 3)
    params = {
        "torso": jax.random.normal(a, (6, 32)) * 0.3,
        "policy": jax.random.normal(b, (32, 4)) * 0.1,
        "value": jax.random.normal(c, (32, 1)) * 0.1,
    }
    batches = []
    for i in range(2):
        k = jax.random.split(jax.random.key(i), 5)
        rollout = {
            "obs": jax.random.normal(k[0], (8, 8, 6)), "last": jax.random.normal(k[1], (8, 6)),
            "reward": jax.random.normal(k[2], (8, 8)), "done": (jax.random.uniform(k[3], (8, 8)) < 0.1) * 1.0,
            "action": jax.random.randint(k[4], (8, 8), 0, 4), "logp": jnp.full((8, 8), -1.386),
        }  # fmt: skip
        batches.append((rollout, jax.random.key(i)))
    return Case(step, ((params, tx.init(params)),), batches, rtol=1e-3)
