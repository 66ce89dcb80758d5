"""Steps with `jax.shard_map` in them, as users write them: ring attention, and a Pallas kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

Function = Callable[..., Any]


def mesh_of(**axes: int) -> AbstractMesh:
    """A mesh that needs no devices."""
    return AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal attention on one device; arrays are [batch, positions, heads, size]."""
    s = q.shape[1]
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    scores = jnp.where(jnp.arange(s)[:, None] >= jnp.arange(s), scores, -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def _ring(n: int, axis: str, remat: bool, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """The same with a part of the positions on each device: keys and values go round."""
    b, s, h, d = q.shape
    mine = jax.lax.axis_index(axis)
    to_next = [(i, (i + 1) % n) for i in range(n)]

    def visit(carry: Any, turn: jax.Array) -> tuple[Any, None]:
        k, v, out, top, total = carry
        theirs = (mine - turn) % n
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * d**-0.5
        seen = mine * s + jnp.arange(s)[:, None] >= theirs * s + jnp.arange(s)
        scores = jnp.where(seen, scores, -1e30)
        higher = jnp.maximum(top, scores.max(-1))
        weights, old = jnp.exp(scores - higher[..., None]), jnp.exp(top - higher)
        out = out * old[..., None] + jnp.einsum("bhqk,bkhd->bhqd", weights, v)
        total = total * old + weights.sum(-1)
        k, v = (jax.lax.ppermute(x, axis, to_next) for x in (k, v))
        return (k, v, out, higher, total), None

    start = jnp.zeros((b, h, s, d), q.dtype), jnp.full((b, h, s), -1e30, q.dtype), jnp.zeros((b, h, s), q.dtype)
    start = jax.tree.map(lambda x: jax.lax.pcast(x, (axis,), to="varying"), start)
    turn = jax.checkpoint(visit) if remat else visit
    (_, _, out, _, total), _ = jax.lax.scan(turn, (k, v, *start), jnp.arange(n))
    return (out / total[..., None]).transpose(0, 2, 1, 3)


def ring_attention(mesh: Any, axis: str = "sp", remat: bool = False, **options: Any) -> Function:
    """Ring attention over an axis of a mesh; `options` are those of `jax.shard_map`.

    With `remat` the backward pass computes the scores again, instead of keeping those of all turns.
    """
    split = P(None, axis)
    ring = functools.partial(_ring, dict(mesh.shape)[axis], axis, remat)
    return jax.shard_map(ring, mesh=mesh, in_specs=(split,) * 3, out_specs=split, **options)


def transformer_step(attend: Function, heads: int = 4) -> Function:
    """A training step of a block with attention and an MLP; its parameters are `block_params`."""

    def step(params: Any, x: jax.Array, y: jax.Array) -> tuple[Any, jax.Array]:
        def loss(p: Any) -> jax.Array:
            b, s, d = x.shape
            q, k, v = ((x @ p[name]).reshape(b, s, heads, d // heads) for name in "qkv")
            h = x + attend(q, k, v).reshape(b, s, d) @ p["o"]
            h = h + jnp.tanh(h @ p["up"]) @ p["down"]
            return jnp.mean((h - y) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return step


def block_params(width: int) -> dict[str, tuple[int, int]]:
    """Shapes of the parameters."""
    return {**dict.fromkeys("qkvo", (width, width)), "up": (width, 2 * width), "down": (2 * width, width)}


def _tanh_kernel(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = jnp.tanh(x_ref[...])


def _grad_kernel(x_ref: Any, g_ref: Any, o_ref: Any) -> None:
    o_ref[...] = g_ref[...] * (1 - jnp.tanh(x_ref[...]) ** 2)


def _by_example(kernel: Function, *arrays: jax.Array) -> Any:
    x = arrays[0]
    block = pl.BlockSpec((1, *x.shape[1:]), lambda i: (i, 0, 0))
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(
        kernel, out_shape=shape, grid=(len(x),), in_specs=[block] * len(arrays), out_specs=block, interpret=True
    )(*arrays)


@jax.custom_vjp
def _tanh(x: jax.Array) -> jax.Array:
    return _by_example(_tanh_kernel, x)  # type: ignore[no-any-return]


_tanh.defvjp(lambda x: (_by_example(_tanh_kernel, x), x), lambda x, g: (_by_example(_grad_kernel, x, g),))


def pallas_step(mesh: Any) -> Function:
    """A training step of two products with a Pallas kernel between them, on each device's part of the positions."""
    split = P(None, "sp")
    activate = jnp.tanh
    if mesh is not None:
        activate = jax.shard_map(_tanh, mesh=mesh, in_specs=(split,), out_specs=split, check_vma=False)

    def step(params: Any, x: jax.Array, y: jax.Array) -> tuple[Any, jax.Array]:
        value, grads = jax.value_and_grad(lambda p: jnp.mean((activate(x @ p["up"]) @ p["down"] - y) ** 2))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return step
