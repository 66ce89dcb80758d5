"""A selective state-space layer (S6): `lax.associative_scan` over time, a causal convolution by channel, gating."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case

ABOUT = About("JAX", "Mamba: associative_scan, depthwise convolution")
D, N = 16, 4


def block(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    u, gate = jnp.split(x @ p["in"], 2, axis=-1)
    u = jax.lax.conv_general_dilated(
        u, p["conv"], (1,), [(3, 0)], dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=2 * D
    )
    u = jax.nn.silu(u)
    dt = jax.nn.softplus(u @ p["dt"])
    b, c = jnp.split(u @ p["bc"], 2, axis=-1)
    decay = jnp.exp(dt[..., None] * -jnp.exp(p["a"]))
    drive = (dt * u)[..., None] * b[:, :, None]

    def combine(left: Any, right: Any) -> Any:
        return left[0] * right[0], right[0] * left[1] + right[1]

    _, h = jax.lax.associative_scan(combine, (decay, drive), axis=1)
    y = jnp.einsum("bldn,bln->bld", h, c) + u * p["d"]
    return x + (y * jax.nn.silu(gate)) @ p["out"]


def case() -> Case:
    tx = optax.adam(1e-2, eps=1e-6)

    def step(params: Any, opt_state: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss_fn(params: Any) -> jax.Array:
            h = x
            for p in params["blocks"]:
                h = block(p, h)
            return ((h @ params["head"] - y) ** 2).mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    def one(key: jax.Array) -> dict[str, jax.Array]:
        k = jax.random.split(key, 5)
        normal = jax.random.normal
        return {
            "in": normal(k[0], (D, 4 * D)) * 0.2, "conv": normal(k[1], (4, 1, 2 * D)) * 0.3,
            "dt": normal(k[2], (2 * D, 2 * D)) * 0.1, "bc": normal(k[3], (2 * D, 2 * N)) * 0.2,
            "a": jnp.log(jnp.tile(jnp.arange(1.0, N + 1), (2 * D, 1))), "d": jnp.ones(2 * D),
            "out": normal(k[4], (2 * D, D)) * 0.2,
        }  # fmt: skip

    a, b, c = jax.random.split(jax.random.key(0), 3)
    params = {"blocks": [one(a), one(b)], "head": jax.random.normal(c, (D, 1))}
    batches = []
    for i in range(2):
        x = jax.random.normal(jax.random.key(i), (8, 12, D))
        batches.append((x, jnp.cumsum(x.mean(-1, keepdims=True), 1)))
    return Case(step, (params, tx.init(params)), batches, rtol=1e-3)
