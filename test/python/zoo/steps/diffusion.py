"""DDPM: noise at random times, a U-Net-like model with time embeddings, an EMA of the parameters."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case

ABOUT = About("Linen", "diffusion: U-Net with GroupNorm, random times, EMA")


class UNet(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, t: jax.Array) -> jax.Array:
        angles = t[:, None] * jnp.exp(-jnp.arange(8) / 2.0)
        time = nn.Dense(16)(jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1))
        h1 = nn.Conv(16, (3, 3))(x) + time[:, None, None]
        h2 = nn.silu(nn.GroupNorm(4)(nn.Conv(32, (3, 3), strides=(2, 2))(h1)))
        h2 = nn.Conv(32, (3, 3))(h2)
        up = jax.image.resize(h2, (x.shape[0], *x.shape[1:3], 32), "nearest")
        y = nn.silu(nn.GroupNorm(4)(nn.Conv(16, (3, 3))(jnp.concatenate([h1, up], -1))))
        return nn.Conv(x.shape[-1], (3, 3))(y)


def case() -> Case:
    model = UNet()
    tx = optax.adam(1e-3, eps=1e-5)
    betas = jnp.linspace(1e-4, 0.02, 100)
    alphas = jnp.cumprod(1 - betas)

    def step(state: dict[str, Any], images: jax.Array) -> Any:
        key, time_key, noise_key = jax.random.split(state["key"], 3)
        t = jax.random.randint(time_key, (images.shape[0],), 0, 100)
        noise = jax.random.normal(noise_key, images.shape)
        a = alphas[t][:, None, None, None]
        noisy = jnp.sqrt(a) * images + jnp.sqrt(1 - a) * noise

        def loss_fn(params: Any) -> jax.Array:
            return ((model.apply({"params": params}, noisy, t.astype(jnp.float32)) - noise) ** 2).mean()

        loss, grads = jax.value_and_grad(loss_fn)(state["params"])
        updates, opt_state = tx.update(grads, state["opt_state"])
        params = optax.apply_updates(state["params"], updates)
        ema = optax.incremental_update(params, state["ema"], 0.01)
        return {"params": params, "ema": ema, "opt_state": opt_state, "key": key, "step": state["step"] + 1}, loss

    params = model.init(jax.random.key(0), jnp.ones((1, 8, 8, 3)), jnp.ones(1))["params"]
    state = {"params": params, "ema": params, "opt_state": tx.init(params), "key": jax.random.PRNGKey(1), "step": 0}
    batches = [(jax.random.normal(jax.random.key(i), (8, 8, 8, 3)),) for i in range(2)]
    return Case(step, (state,), batches, rtol=1e-3)
