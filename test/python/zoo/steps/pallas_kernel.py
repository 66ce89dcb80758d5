"""A Pallas kernel in the forward pass (interpreted), with a gradient of its own by `custom_vjp`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from zoo.harness import About, Case

ABOUT = About("JAX", "Pallas kernel (interpreted) with custom_vjp", ci=("one",))


def kernel(x_ref: Any, g_ref: Any, o_ref: Any) -> None:
    x = x_ref[...]
    o_ref[...] = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * g_ref[...]


@jax.custom_vjp
def norm(x: jax.Array, g: jax.Array) -> jax.Array:
    return pl.pallas_call(
        kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), grid=(x.shape[0] // 4,), interpret=True,
        in_specs=[pl.BlockSpec((4, x.shape[1]), lambda i: (i, 0)), pl.BlockSpec(g.shape, lambda i: (0,))],
        out_specs=pl.BlockSpec((4, x.shape[1]), lambda i: (i, 0)),
    )(x, g)  # fmt: skip


def plain(x: jax.Array, g: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * g


norm.defvjp(lambda x, g: (norm(x, g), (x, g)), lambda saved, d: jax.vjp(plain, *saved)[1](d))


def step(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> Any:
    def loss_fn(p: dict[str, jax.Array]) -> jax.Array:
        return ((norm(jnp.tanh(x @ p["a"]), p["g"]) @ p["b"] - y) ** 2).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 0.05 * g, params, grads), loss


def case() -> Case:
    k = jax.random.split(jax.random.key(0), 2)
    params = {
        "a": jax.random.normal(k[0], (8, 16)) * 0.3,
        "b": jax.random.normal(k[1], (16, 4)) * 0.3,
        "g": jnp.ones(16),
    }
    batches = []
    for i in range(2):
        a, b = jax.random.split(jax.random.key(i))
        batches.append((jax.random.normal(a, (32, 8)), jax.random.normal(b, (32, 4))))
    return Case(step, (params,), batches, rtol=1e-3)
