"""A step with a ring of four devices inside: attention by `shard_map` over a mesh of its own, and `ppermute`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from zoo.harness import About, Case

ABOUT = About("JAX", "ring attention by shard_map over four devices")
HEADS, WIDTH, LENGTH, RING = 4, 32, 16, 4


def ring_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """What one device does with its part of the positions; not causal."""
    to_next = [(i, (i + 1) % RING) for i in range(RING)]

    def visit(carry: Any, _: None) -> Any:
        k, v, out, top, total = carry
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        higher = jnp.maximum(top, scores.max(-1))
        weights, old = jnp.exp(scores - higher[..., None]), jnp.exp(top - higher)
        out = out * old[..., None] + jnp.einsum("bhqk,bkhd->bhqd", weights, v)
        k, v = (jax.lax.ppermute(x, "ring", to_next) for x in (k, v))
        return (k, v, out, higher, total * old + weights.sum(-1)), None

    b, s, h, d = q.shape
    start = jnp.zeros((b, h, s, d)), jnp.full((b, h, s), -1e30), jnp.zeros((b, h, s))
    start = jax.tree.map(lambda x: jax.lax.pcast(x, ("ring",), to="varying"), start)
    (_, _, out, _, total), _ = jax.lax.scan(jax.checkpoint(visit), (k, v, *start), None, length=RING)
    return (out / total[..., None]).transpose(0, 2, 1, 3)


def step(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> Any:
    mesh = jax.make_mesh((RING,), ("ring",), axis_types=(AxisType.Auto,), devices=jax.devices()[:RING])
    attend = jax.shard_map(ring_attention, mesh=mesh, in_specs=P(None, "ring"), out_specs=P(None, "ring"))

    def loss_fn(p: dict[str, jax.Array]) -> jax.Array:
        q, k, v = ((x @ p[n]).reshape(*x.shape[:2], HEADS, -1) for n in "qkv")
        h = x + attend(q, k, v).reshape(x.shape) @ p["o"]
        return ((h + jnp.tanh(h @ p["up"]) @ p["down"] - y) ** 2).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def case() -> Case:
    shapes = {**dict.fromkeys("qkvo", (WIDTH, WIDTH)), "up": (WIDTH, 64), "down": (64, WIDTH)}
    keys = jax.random.split(jax.random.key(0), len(shapes))
    params = {n: jax.random.normal(k, s) * s[0] ** -0.5 for k, (n, s) in zip(keys, shapes.items(), strict=True)}
    batches = []
    for i in range(2):
        a, b = jax.random.split(jax.random.key(i))
        batches.append((jax.random.normal(a, (8, LENGTH, WIDTH)), jax.random.normal(b, (8, LENGTH, WIDTH))))
    return Case(step, (params,), batches, rtol=1e-3)
