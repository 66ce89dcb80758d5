"""NeRF: positional encoding, samples along rays, volume rendering by cumulative products."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case

ABOUT = About("JAX", "NeRF: stratified samples, volume rendering by cumprod")


def encode(x: jax.Array) -> jax.Array:
    scaled = x[..., None, :] * 2.0 ** jnp.arange(3)[:, None]
    return jnp.concatenate([jnp.sin(scaled), jnp.cos(scaled)], -1).reshape(*x.shape[:-1], -1)


def case() -> Case:
    tx = optax.adam(optax.exponential_decay(1e-2, 10, 0.9), eps=1e-6)

    def step(params: Any, opt_state: Any, rays: dict[str, jax.Array], key: jax.Array) -> Any:
        def loss_fn(p: Any) -> jax.Array:
            edges = jnp.linspace(2.0, 6.0, 9)
            noise = jax.random.uniform(key, (rays["o"].shape[0], 8))
            depth = edges[:-1] + noise * (edges[1:] - edges[:-1])
            points = rays["o"][:, None] + depth[..., None] * rays["d"][:, None]
            h = jax.nn.relu(encode(points) @ p["a"])
            out = jax.nn.relu(h @ p["b"]) @ p["c"]
            rgb, sigma = jax.nn.sigmoid(out[..., :3]), jax.nn.relu(out[..., 3])
            gaps = jnp.diff(depth, axis=-1, append=jnp.full((depth.shape[0], 1), 6.5))
            alpha = 1 - jnp.exp(-sigma * gaps)
            through = jnp.cumprod(1 - alpha + 1e-10, axis=-1)
            weights = alpha * jnp.concatenate([jnp.ones_like(through[:, :1]), through[:, :-1]], -1)
            return (((weights[..., None] * rgb).sum(1) - rays["rgb"]) ** 2).mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state)
        psnr = -10 * jnp.log10(loss)
        return optax.apply_updates(params, updates), opt_state, psnr

    k = jax.random.split(jax.random.key(0), 3)
    shapes = {"a": (18, 32), "b": (32, 32), "c": (32, 4)}
    params = {n: jax.random.normal(key, s) * 0.3 for (n, s), key in zip(shapes.items(), k, strict=True)}
    batches = []
    for i in range(2):
        a, b, c, d = jax.random.split(jax.random.key(i), 4)
        batches.append(
            ({"o": jax.random.normal(a, (16, 3)), "d": jax.random.normal(b, (16, 3)),
              "rgb": jax.random.uniform(c, (16, 3))}, d)
        )  # fmt: skip
    return Case(step, (params, tx.init(params)), batches, rtol=1e-3)
