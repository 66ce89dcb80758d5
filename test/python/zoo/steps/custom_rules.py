"""Custom derivatives: a `custom_jvp` activation, a straight-through estimator by `custom_vjp`, `stop_gradient`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from zoo.harness import About, Case

ABOUT = About("JAX", "custom_jvp, custom_vjp (straight-through), stop_gradient", ci=("mesh",))


@jax.custom_jvp
def softsign(x: jax.Array) -> jax.Array:
    return x / (1 + jnp.abs(x))


@softsign.defjvp
def _softsign(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return softsign(x), t / (1 + jnp.abs(x)) ** 2


@jax.custom_vjp
def rounded(x: jax.Array) -> jax.Array:
    return jnp.round(x)


rounded.defvjp(lambda x: (jnp.round(x), None), lambda _, g: (g,))


def step(params: dict[str, jax.Array], x: jax.Array) -> Any:
    def loss_fn(p: dict[str, jax.Array]) -> jax.Array:
        z = softsign(x @ p["enc"])
        codes = rounded(z * 4) / 4
        out = codes @ p["dec"]
        commit = ((z - jax.lax.stop_gradient(codes)) ** 2).mean()
        return ((out - x) ** 2).mean() + 0.25 * commit

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def case() -> Case:
    k = jax.random.split(jax.random.key(0), 2)
    params = {"enc": jax.random.normal(k[0], (16, 8)) * 0.3, "dec": jax.random.normal(k[1], (8, 16)) * 0.3}
    return Case(step, (params,), [(jax.random.normal(jax.random.key(i), (16, 16)),) for i in range(2)])
