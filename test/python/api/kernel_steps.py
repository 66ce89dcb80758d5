"""Training steps with Pallas kernels in interpret mode, as users write them, and what tests of kernels share."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas.ops.gpu import attention

import rhino

Params = dict[str, jax.Array]


def product_kernel(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
    """One block of a product, over the blocks of the inner dimension."""

    @pl.when(pl.program_id(2) == 0)
    def _() -> None:
        o_ref[...] = jnp.zeros_like(o_ref)

    o_ref[...] += x_ref[...] @ y_ref[...]


def blocked(x: jax.Array, y: jax.Array, block: int = 16) -> jax.Array:
    """x @ y by a Pallas kernel."""
    (m, k), n = x.shape, y.shape[1]
    return pl.pallas_call(
        product_kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        grid=(m // block, n // block, k // block),
        in_specs=[
            pl.BlockSpec((block, block), lambda i, j, k: (i, k)),
            pl.BlockSpec((block, block), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((block, block), lambda i, j, k: (i, j)),
        interpret=True,
    )(x, y)


@jax.custom_vjp
def product(x: jax.Array, y: jax.Array) -> jax.Array:
    """x @ y by the kernel, with gradients by the kernel."""
    return blocked(x, y)


product.defvjp(lambda x, y: (blocked(x, y), (x, y)), lambda r, g: (blocked(g, r[1].T), blocked(r[0].T, g)))


def mlp_step(params: Params, x: jax.Array, y: jax.Array) -> tuple[Params, jax.Array]:
    """One step of two layers whose products are the kernel's."""

    def loss(p: Params) -> jax.Array:
        return jnp.mean((product(jnp.tanh(product(x, p["up"])), p["down"]) - y) ** 2)

    return descend(loss, params)


def attention_step(params: Params, x: jax.Array, y: jax.Array) -> tuple[Params, jax.Array]:
    """One step of a layer of jax's own flash attention for GPUs, causal, 4 heads of 16."""

    def loss(p: Params) -> jax.Array:
        b, s, d = x.shape
        query, key, value = ((x @ p[name]).reshape(b, s, 4, d // 4) for name in ("q", "k", "v"))
        sizes = attention.BlockSizes(
            block_q=16, block_k=16, block_q_dkv=16, block_kv_dkv=16, block_q_dq=16, block_kv_dq=16
        )
        mixed = attention.mha(query, key, value, None, causal=True, interpret=True, block_sizes=sizes)
        return jnp.mean((mixed.reshape(b, s, d) @ p["o"] - y) ** 2)

    return descend(loss, params)


def descend(loss: Any, params: Params) -> tuple[Params, jax.Array]:
    """One step of gradient descent."""
    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.5 * g, params, grads), value


def arrays(seed: int, **shapes: tuple[int, ...]) -> Params:
    """Random arrays, small enough that products stay near one."""
    rng = np.random.default_rng(seed)
    return {n: jnp.asarray(rng.normal(size=s) / math.sqrt(s[-1]), jnp.float32) for n, s in shapes.items()}


@contextmanager
def registered(target: Any, rule: str, **given: Any) -> Iterator[None]:
    """While it lasts, a kernel is registered."""
    rhino.kernels.register(target, rule, **given)
    try:
        yield
    finally:
        rhino.kernels.unregister(target)
