"""A Fourier neural operator: `rfft2` over the grid, complex weights on the low modes, `irfft2`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case

ABOUT = About("JAX", "Fourier neural operator: rfft2, complex parameters, Adam")


def case() -> Case:
    tx = optax.adam(1e-2, eps=1e-5)

    def step(params: Any, opt_state: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss_fn(p: Any) -> jax.Array:
            h = x @ p["lift"]
            for w in p["modes"]:
                z = jnp.fft.rfft2(h, axes=(1, 2))
                low = jnp.einsum("bxyi,xyio->bxyo", z[:, :3, :3], jax.lax.complex(w["re"], w["im"]))
                z = jnp.zeros_like(z).at[:, :3, :3].set(low)
                h = jax.nn.gelu(jnp.fft.irfft2(z, s=h.shape[1:3], axes=(1, 2)) + h @ w["skip"])
            return ((h @ p["drop"] - y) ** 2).mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    def mode(key: jax.Array) -> dict[str, jax.Array]:
        a, b, c = jax.random.split(key, 3)
        shape = (3, 3, 8, 8)
        return {"re": jax.random.normal(a, shape) * 0.1, "im": jax.random.normal(b, shape) * 0.1,
                "skip": jax.random.normal(c, (8, 8)) * 0.3}  # fmt: skip

    k = jax.random.split(jax.random.key(0), 4)
    params = {
        "lift": jax.random.normal(k[0], (2, 8)), "drop": jax.random.normal(k[1], (8, 1)),
        "modes": [mode(k[2]), mode(k[3])],
    }  # fmt: skip
    batches = []
    for i in range(2):
        x = jax.random.normal(jax.random.key(i), (8, 8, 8, 2))
        batches.append((x, jnp.cumsum(x[..., :1], axis=1)))
    return Case(step, (params, tx.init(params)), batches, rtol=1e-3)
