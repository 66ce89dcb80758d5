"""A step whose author split it by hand, over a mesh of one device: `shard_map` with `psum` around the gradient."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from zoo.harness import About, Case

ABOUT = About("JAX", "shard_map with pmean over the author's mesh of one device", ci=("one",))


def case() -> Case:
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))

    def step(w: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        def local(w: jax.Array, x: jax.Array, y: jax.Array) -> Any:
            loss, g = jax.value_and_grad(lambda w: ((jnp.tanh(x @ w) - y) ** 2).mean())(w)
            return jax.lax.pmean(loss, "data"), jax.lax.pmean(g, "data")

        specs = (P(), P("data"), P("data"))
        loss, g = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=(P(), P()), check_vma=False)(w, x, y)
        return w - 0.1 * g, loss

    w = jax.random.normal(jax.random.key(0), (8, 4))
    batches = []
    for i in range(2):
        a, b = jax.random.split(jax.random.key(i))
        batches.append((jax.random.normal(a, (16, 8)), jax.random.normal(b, (16, 4))))
    return Case(step, (w,), batches)
