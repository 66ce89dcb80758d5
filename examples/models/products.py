"""Products in eight bits, for models that take `products="f8"`.

Owns how operands are rounded, forward and backward; knows no model.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

KINDS = ("", "f8")


def check(kind: str) -> None:
    """Raises ValueError unless there is such a kind of product."""
    if kind not in KINDS:
        raise ValueError(f"products is {kind!r}; it must be '' or 'f8'")


def dot_general(kind: str) -> Callable[..., jax.Array] | None:
    """What `dot_general` of a Flax layer is to be: None for products in the layer's own type."""
    return _rounded if kind == "f8" else None


def of_experts(kind: str, tokens: jax.Array, weights: jax.Array) -> jax.Array:
    """Every expert's tokens [E, ..., k] by its own weights [E, k, n]: [E, ..., n]."""
    one = functools.partial(_f8, 1) if kind == "f8" else functools.partial(jnp.tensordot, axes=1)
    return jax.vmap(one)(tokens, weights)


def _rounded(lhs: jax.Array, rhs: jax.Array, dimension_numbers: Any, **_: Any) -> jax.Array:
    """A dense layer's product of activations [..., k] and weights [k, ...], over the k dimensions."""
    (_, contracted), batched = dimension_numbers
    assert not batched[0] and tuple(contracted) == tuple(range(len(contracted)))
    return _f8(len(contracted), lhs, rhs)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _f8(count: int, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    return _forward(count, lhs, rhs)[0]


def _forward(count: int, lhs: jax.Array, rhs: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """e4m3 forward, e5m2 for gradients (Micikevicius et al. 2022, arXiv 2209.05433); what is saved is rounded."""
    x, w = lhs.astype(jnp.float8_e4m3fn), rhs.astype(jnp.float8_e4m3fn)
    dims = (tuple(range(lhs.ndim - count, lhs.ndim)), tuple(range(count)))
    return lax.dot_general(x, w, (dims, ((), ())), preferred_element_type=lhs.dtype), (x, w)


def _backward(count: int, saved: tuple[jax.Array, jax.Array], grad: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, w = saved
    g = grad.astype(jnp.float8_e5m2)
    rows, columns = x.ndim - count, w.ndim - count
    of_columns = (tuple(range(rows, rows + columns)), tuple(range(count, count + columns)))
    dx = lax.dot_general(g, w, (of_columns, ((), ())), preferred_element_type=grad.dtype)
    of_rows = (tuple(range(rows)), tuple(range(rows)))
    dw = lax.dot_general(x, g, (of_rows, ((), ())), preferred_element_type=grad.dtype)
    return dx, dw


_f8.defvjp(_forward, _backward)
