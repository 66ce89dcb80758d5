"""A step whose loop over layers is laid out as told, and what it computes on eight devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxlib.mlir import ir

from rhino.compile import compile_module
from rhino.dialect.context import make_context, parse_text
from rhino.ir.import_graph import import_graph
from rhino.ir.write_layouts import annotate
from rhino.machine import Cluster, Device, Level
from rhino.passes.pass_manager import PassManager
from rhino.sharding import Options, plan_sharding

LAYERS, WIDTH, BATCH, LENGTH = 4, 16, 16, 8
# Computing is slow, so that all of it is divided.
HOST = Cluster(
    "host", 1, 8, Device("slow", "h100", {"f32": 1e8, "bf16": 1e8}, 2**30, 1e11), (Level("link", 8, 1e12, 1e-7),)
)
Dims = tuple[tuple[str, ...], ...]


def loss(weights: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    @jax.checkpoint
    def layer(h: jax.Array, w: dict[str, jax.Array]) -> tuple[jax.Array, None]:
        normed = h * jax.lax.rsqrt(jnp.mean(h * h, -1, keepdims=True) + 1e-6) * w["scale"]
        up = jax.nn.gelu(normed @ w["up"] + w["bias"])
        return h + jnp.einsum("blh,hd->bld", up, w["down"]), None

    return jnp.mean(jax.lax.scan(layer, x, weights)[0] ** 2)


def step(weights: dict[str, jax.Array], x: jax.Array) -> Any:
    value, gradients = jax.value_and_grad(loss)(weights, x)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value


def shapes(width: int, layers: int = LAYERS) -> dict[str, tuple[int, ...]]:
    hidden = 2 * width
    return {
        "bias": (layers, hidden),
        "down": (layers, hidden, width),
        "scale": (layers, width),
        "up": (layers, width, hidden),
    }


def lowered(dtype: Any, width: int, length: int, layers: int = LAYERS) -> ir.Module:
    weights = {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape in shapes(width, layers).items()}
    given = weights, jax.ShapeDtypeStruct((BATCH, length, width), dtype)
    # With locations, by which arguments have names.
    text = jax.jit(step, donate_argnums=0).lower(*given).as_text(debug_info=True)
    module = parse_text(text, make_context())
    PassManager(module.context).add("inline").add("symbol-dce").add("rhino-classify-args").run(module)
    return module


def planned(
    mesh: Sequence[int],
    batch: Dims,
    split: Dims,
    dtype: Any = jnp.float32,
    cluster: Cluster = HOST,
    width: int = WIDTH,
    length: int = LENGTH,
    layers: int = LAYERS,
) -> ir.Module:
    """The step for a mesh, with its data and its two matrices laid out as told."""
    module = lowered(dtype, width, length, layers)
    graph = import_graph(module)
    for argument in graph.arguments:
        rank = len(graph.values[argument.value].shape)
        is_data = graph.values[argument.value].shape[0] == BATCH
        dims = batch if is_data else ((), *split) if rank == 3 else ((),) * rank
        graph.pins[argument.value] = argument.name, dims
    annotate(module, graph, plan_sharding(graph, cluster, Options(mesh=tuple(mesh))))
    return module


def ran(module: ir.Module, dtype: Any, layers: int = LAYERS) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    given = [*shapes(WIDTH, layers).values(), (BATCH, LENGTH, WIDTH)]
    arguments = [jnp.asarray(rng.normal(size=shape) / 2, dtype) for shape in given]
    return [np.asarray(out, np.float32) for out in compile_module(str(module), "cpu", devices=8)(*arguments)]


ROWS: Dims = (("x", "y"), (), ())
