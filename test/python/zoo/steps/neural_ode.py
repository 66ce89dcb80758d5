"""A neural ODE: fixed Runge-Kutta steps by `scan`, the loss along the trajectory, gradients through all of it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case, Refused

ABOUT = About(
    "JAX", "neural ODE: Runge-Kutta by scan",
    stages=Refused("'stablehlo.slice' needs all examples at once", "time is the leading dimension of its data"),
)  # fmt: skip


def case() -> Case:
    tx = optax.adam(1e-2, eps=1e-5)

    def field(p: dict[str, jax.Array], t: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.tanh(y @ p["a"] + t) @ p["b"]

    def rk4(p: Any, t: jax.Array, y: jax.Array, dt: jax.Array) -> jax.Array:
        k1 = field(p, t, y)
        k2 = field(p, t + dt / 2, y + dt / 2 * k1)
        k3 = field(p, t + dt / 2, y + dt / 2 * k2)
        k4 = field(p, t + dt, y + dt * k3)
        return y + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    def step(params: Any, opt_state: Any, ts: jax.Array, ys: jax.Array) -> Any:
        def loss_fn(p: Any) -> jax.Array:
            def body(y: jax.Array, t: Any) -> Any:
                y = rk4(p, t[0], y, t[1] - t[0])
                return y, y

            _, found = jax.lax.scan(body, ys[0], (ts[:-1], ts[1:]))
            return ((found - ys[1:]) ** 2).mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    a, b = jax.random.split(jax.random.key(0))
    params = {"a": jax.random.normal(a, (2, 16)) * 0.5, "b": jax.random.normal(b, (16, 2)) * 0.5}
    batches = []
    for i in range(2):
        ts = jnp.linspace(0.0, 1.0, 6)
        start = jax.random.normal(jax.random.key(i), (16, 2))
        batches.append((ts, jnp.stack([start * jnp.exp(-t) for t in ts])))
    return Case(step, (params, tx.init(params)), batches, rtol=1e-3)
