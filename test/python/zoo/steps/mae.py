"""Masked autoencoder: patches shuffled per example by argsort of noise, a quarter encoded, mask tokens put back."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case

ABOUT = About("JAX", "masked autoencoder: argsort of noise, gathered patches, mask tokens")
PATCHES, KEEP, WIDTH = 16, 4, 32


def mix(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    y = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
    q, k, v = jnp.split(y @ p["qkv"], 3, axis=-1)
    x = x + jax.nn.softmax(q @ jnp.swapaxes(k, 1, 2) * WIDTH**-0.5) @ v @ p["out"]
    return x + jax.nn.gelu(x @ p["up"]) @ p["down"]


def step(params: dict[str, Any], opt_state: Any, images: jax.Array, key: jax.Array) -> Any:
    b = images.shape[0]
    patches = images.reshape(b, 4, 4, 4, 4, 3).transpose(0, 1, 3, 2, 4, 5).reshape(b, PATCHES, 48)
    shuffle = jnp.argsort(jax.random.uniform(key, (b, PATCHES)), axis=1)
    restore = jnp.argsort(shuffle, axis=1)
    mask = jnp.take_along_axis(jnp.ones((b, PATCHES)).at[:, :KEEP].set(0), restore, axis=1)

    def loss_fn(p: dict[str, Any]) -> jax.Array:
        x = patches @ p["embed"] + p["position"]
        x = mix(p["encoder"], jnp.take_along_axis(x, shuffle[:, :KEEP, None], axis=1))
        hidden = jnp.broadcast_to(p["mask"], (b, PATCHES - KEEP, WIDTH))
        x = jnp.take_along_axis(jnp.concatenate([x, hidden], axis=1), restore[:, :, None], axis=1)
        out = mix(p["decoder"], x + p["position"]) @ p["pixels"]
        return (((out - patches) ** 2).mean(-1) * mask).sum() / mask.sum()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = TX.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


TX = optax.adamw(1e-2, eps=1e-4)


def case() -> Case:
    keys = iter(jax.random.split(jax.random.key(0), 16))

    def normal(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), shape) * shape[0] ** -0.5

    def layer() -> dict[str, jax.Array]:
        return {
            "qkv": normal(WIDTH, 3 * WIDTH), "out": normal(WIDTH, WIDTH), "up": normal(WIDTH, 64),
            "down": normal(64, WIDTH),
        }  # fmt: skip

    params = {
        "embed": normal(48, WIDTH), "position": normal(PATCHES, WIDTH), "mask": normal(WIDTH), "encoder": layer(),
        "decoder": layer(), "pixels": normal(WIDTH, 48),
    }  # fmt: skip
    batches = [(jax.random.normal(jax.random.key(i), (8, 16, 16, 3)), jax.random.key(i)) for i in range(2)]
    return Case(step, (params, TX.init(params)), batches, donate=(0, 1), rtol=1e-3)
