"""A deep equilibrium model: a fixed point by `while_loop`, its gradient implicit by `custom_vjp` and another loop."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from zoo.harness import About, Case, Refused

ABOUT = About(
    "JAX", "deep equilibrium: while_loop, implicit gradient", ci=("mesh",),
    stages=Refused("not sync-free", "the loop ends when all examples have converged"),
)  # fmt: skip


def f(w: jax.Array, x: jax.Array, z: jax.Array) -> jax.Array:
    return jnp.tanh(z @ w + x)


def solve(function: Any, z: jax.Array) -> jax.Array:
    def more(carry: Any) -> jax.Array:
        previous, z, i = carry
        return (jnp.abs(z - previous).max() > 1e-6) & (i < 60)

    def body(carry: Any) -> Any:
        _, z, i = carry
        return z, function(z), i + 1

    return jax.lax.while_loop(more, body, (z + 1, z, 0))[1]


@partial(jax.custom_vjp)
def equilibrium(w: jax.Array, x: jax.Array) -> jax.Array:
    return solve(lambda z: f(w, x, z), jnp.zeros_like(x))


def _forward(w: jax.Array, x: jax.Array) -> Any:
    z = equilibrium(w, x)
    return z, (w, x, z)


def _backward(saved: Any, g: jax.Array) -> Any:
    w, x, z = saved
    _, vjp = jax.vjp(lambda z: f(w, x, z), z)
    u = solve(lambda u: g + vjp(u)[0], g)
    return jax.vjp(lambda w, x: f(w, x, z), w, x)[1](u)


equilibrium.defvjp(_forward, _backward)


def step(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> Any:
    def loss_fn(p: dict[str, jax.Array]) -> jax.Array:
        return ((equilibrium(p["w"], x @ p["in"]) @ p["out"] - y) ** 2).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def case() -> Case:
    k = jax.random.split(jax.random.key(0), 3)
    params = {
        "in": jax.random.normal(k[0], (8, 16)) * 0.3, "w": jax.random.normal(k[1], (16, 16)) * 0.1,
        "out": jax.random.normal(k[2], (16, 2)) * 0.3,
    }  # fmt: skip
    batches = []
    for i in range(2):
        a, b = jax.random.split(jax.random.key(i))
        batches.append((jax.random.normal(a, (16, 8)), jax.random.normal(b, (16, 2))))
    return Case(step, (params,), batches, rtol=1e-3)
