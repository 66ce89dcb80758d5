"""The plans that the pictures show: small steps, planned for clusters that need not be here."""

from __future__ import annotations

from functools import cache, wraps
from typing import Any

import rhino
from rhino.api.plan import Plan
from rhino.program import Graph


def shaped(*shape: int) -> Any:
    """A float32 of a shape, without values."""
    import jax
    import jax.numpy as jnp

    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _trained(loss: Any) -> Any:
    """The step of plain gradient descent on `loss`."""
    import jax

    @wraps(loss)  # for the names of its arguments
    def train_step(params: Any, *batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, *batch)
        return jax.tree.map(lambda p, g: p - 1e-2 * g, params, grads), value

    return train_step


def _plan(loss: Any, cluster: str, *arguments: Any, **options: Any) -> Plan:
    return rhino.parallelize(_trained(loss), cluster=cluster, donate_argnums=(0,), **options).plan(*arguments)


@cache
def sharded() -> Plan:
    """Two dense layers and a large batch on two hosts of four devices, with a mesh of two axes as asked for.

    Its tensors are laid out in three ways, the same with jax 0.10.2 and 0.12 and HiGHS 1.15 and 1.16.
    """
    import jax
    import jax.numpy as jnp

    def loss(params: Any, batch: Any, labels: Any) -> Any:
        return jnp.mean((jax.nn.relu(batch @ params["up"] + params["bias"]) @ params["down"] - labels) ** 2)

    rows, width = 131072, 8192
    params = {"up": shaped(width, width), "bias": shaped(width), "down": shaped(width, width)}
    given = {"mesh": (2, 4), "level": "O2"}
    return _plan(loss, "p3.8xlarge:2", params, shaped(rows, width), shaped(rows, width), **given)


@cache
def fused() -> Plan:
    """Attention whose queries, keys and values come from one matrix, for one sequence on four devices."""
    import jax
    import jax.numpy as jnp

    def loss(params: Any, x: Any) -> Any:
        q, k, v = (part.reshape(1, 512, 16, 64) for part in jnp.split(x @ params["qkv"], 3, axis=-1))
        return jnp.mean((jax.nn.dot_product_attention(q, k, v).reshape(1, 512, 1024) @ params["out"]) ** 2)

    return _plan(loss, "p3.8xlarge:1", {"qkv": shaped(1024, 3072), "out": shaped(1024, 1024)}, shaped(1, 512, 1024))


@cache
def staged(schedule: str) -> Plan:
    """Eight residual layers and a head as a pipeline of four stages on two hosts, with a schedule that is given."""
    import jax
    import jax.numpy as jnp

    width, rows = 16384, 4096

    def loss(params: Any, x: Any, labels: Any) -> Any:
        for i in range(8):
            x = x + jax.nn.relu(x @ params[f"layer_{i}"])
        return jnp.mean((x - labels) ** 2)

    params = {f"layer_{i}": shaped(width, width) for i in range(8)}
    given = {"stages": 4, "microbatches": 8, "schedule": schedule}
    return _plan(loss, "p3.16xlarge:2", params, shaped(rows, width), shaped(rows, width), **given)


@cache
def layer() -> Graph:
    """The forward pass of two dense layers, as the search reads it."""
    import jax

    from rhino.dialect.context import make_context, parse_text
    from rhino.ir.import_graph import import_graph
    from rhino.passes.pass_manager import PassManager

    def forward(batch: Any, up: Any, bias: Any, down: Any) -> Any:
        return jax.nn.relu(batch @ up + bias) @ down

    shapes = shaped(1024, 4096), shaped(4096, 16384), shaped(16384), shaped(16384, 4096)
    module = parse_text(jax.jit(forward).lower(*shapes).as_text(debug_info=True), make_context())
    passes = PassManager(module.context)
    for name in ("rhino-inline", "symbol-dce", "canonicalize", "rhino-classify-args"):
        passes.add(name)
    passes.run(module)
    return import_graph(module)
