"""WGAN-GP: a critic on real and made examples at once, a penalty on its gradient at points between them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.common import mlp_params
from zoo.harness import About, Case

ABOUT = About("JAX", "WGAN-GP: gradient penalty by vmapped grad, two optimizers, real and fake concatenated")
CRITIC, GENERATOR = optax.adam(1e-2, b1=0.5, eps=1e-4), optax.adam(1e-2, b1=0.5, eps=1e-4)


def net(params: Any, x: jax.Array) -> jax.Array:
    for p in params[:-1]:
        x = jax.nn.silu(x @ p["w"] + p["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def step(state: dict[str, Any], real: jax.Array, key: jax.Array) -> Any:
    a, b = jax.random.split(key)
    fake = net(state["generator"], jax.random.normal(a, (real.shape[0], 16)))

    def critic_loss(params: Any) -> jax.Array:
        def score(x: jax.Array) -> jax.Array:
            return net(params, jnp.concatenate([x, x], -1)).mean(-1)

        on_real, on_fake = jnp.split(score(jnp.concatenate([real, jax.lax.stop_gradient(fake)])), 2)
        share = jax.random.uniform(b, (real.shape[0], 1))
        between = share * real + (1 - share) * fake
        norms = jnp.linalg.norm(jax.vmap(jax.grad(score))(between), axis=-1)
        return on_fake.mean() - on_real.mean() + 10 * ((norms - 1) ** 2).mean()

    def generator_loss(params: Any) -> jax.Array:
        made = net(params, jax.random.normal(a, (real.shape[0], 16)))
        return -net(state["critic"], jnp.concatenate([made, made], -1)).mean()

    c_loss, c_grads = jax.value_and_grad(critic_loss)(state["critic"])
    g_loss, g_grads = jax.value_and_grad(generator_loss)(state["generator"])
    c_updates, c_opt = CRITIC.update(c_grads, state["critic_opt"])
    g_updates, g_opt = GENERATOR.update(g_grads, state["generator_opt"])
    state = {
        "critic": optax.apply_updates(state["critic"], c_updates), "critic_opt": c_opt,
        "generator": optax.apply_updates(state["generator"], g_updates), "generator_opt": g_opt,
    }  # fmt: skip
    return state, {"critic": c_loss, "generator": g_loss}


def case() -> Case:
    critic, generator = mlp_params(), mlp_params()
    state = {
        "critic": critic, "critic_opt": CRITIC.init(critic), "generator": generator,
        "generator_opt": GENERATOR.init(generator),
    }  # fmt: skip
    batches = [(jax.random.normal(jax.random.key(i), (16, 8)), jax.random.key(i)) for i in range(2)]
    return Case(step, (state,), batches, rtol=1e-3)
