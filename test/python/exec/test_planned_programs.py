"""Planned programs compute what the original does: StableHLO's interpreter on one device against XLA on eight.

The interpreter knows nothing of shardings, and sees the program before it is planned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpha_beta import AlphaBeta, Textbook
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from search_programs import adam_step, attention, host, module_of, spec

from rhino.compile import Executable, compile_module
from rhino.ir.import_graph import import_graph
from rhino.ir.write_layouts import annotate
from rhino.program import Graph
from rhino.sharding import Options, plan_sharding


def mlp() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return adam_step(3, 32, 16)


def scanned() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Stacked layers under scan, forward and backward."""

    def loss(ws: jax.Array, x: jax.Array) -> jax.Array:
        return (jax.lax.scan(lambda h, w: (h + jnp.tanh(h @ w), None), x, ws)[0] ** 2).mean()

    return lambda ws, x: ws - 0.1 * jax.grad(loss)(ws, x), (spec(4, 16, 16), spec(32, 16))


def embedding() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Rows looked up, and their gradients added to the table."""

    def loss(table: jax.Array, w: jax.Array, ids: jax.Array) -> jax.Array:
        return (jnp.tanh(table[ids]) @ w).sum()

    def step(table: jax.Array, w: jax.Array, ids: jax.Array) -> Any:
        return jax.grad(loss, argnums=(0, 1))(table, w, ids)

    return step, (spec(64, 16), spec(16, 8), spec(4, 16, dtype=jnp.int32))


def heads() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Self-attention with 8 heads, forward and backward."""

    def step(weights: list[jax.Array], x: jax.Array) -> Any:
        return jax.value_and_grad(lambda w: (attention(w, x) ** 2).mean())(weights)

    return step, ([spec(32, 8, 4)] * 3 + [spec(8, 4, 32)], spec(8, 4, 32))


def convolution() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Two convolutions, the second with strides, with their gradients."""

    def net(kernels: list[jax.Array], x: jax.Array) -> jax.Array:
        for k, strides in zip(kernels, ((1, 1), (2, 2)), strict=True):
            numbers = ("NHWC", "HWIO", "NHWC")
            x = jnp.tanh(jax.lax.conv_general_dilated(x, k, strides, "SAME", dimension_numbers=numbers))
        return (x**2).mean()

    return jax.grad(net), ([spec(3, 3, 8, 16), spec(3, 3, 16, 8)], spec(8, 4, 4, 8))


PROGRAMS = {f.__name__: f for f in (mlp, scanned, embedding, heads, convolution)}


def values(graph: Graph) -> list[np.ndarray]:
    """Small random arguments; whole numbers are indices below 16."""
    random = np.random.default_rng(0)
    found = []
    for argument in graph.arguments:
        value = graph.values[argument.value]
        if value.dtype.endswith("i32"):
            found.append(np.asarray(random.integers(0, 16, value.shape), np.int32))
        else:
            found.append(np.asarray(random.uniform(0.05, 0.5, value.shape), np.float32))
    return found


def interpreted(module: ir.Module, arguments: list[np.ndarray]) -> list[np.ndarray]:
    with module.context:
        shaped = [ir.DenseElementsAttr.get(a) for a in arguments]
        return [np.array(out) for out in stablehlo.eval_module(module, shaped)]


# Everything is split that can be: compute is dear and communication nearly free.
EAGER = Textbook(
    host(8),
    lambda sizes: AlphaBeta(sizes, (1e-6,) * len(sizes), (1e-9,) * len(sizes)),
    lambda graph: [float(op.flops) for op in graph.ops],
)


def planned(module: ir.Module, graph: Graph, options: Options) -> Executable:
    annotate(module, graph, plan_sharding(graph, host(8), options, model=EAGER))
    return compile_module(str(module), "cpu", devices=8)


@pytest.mark.parametrize("mesh", [(8,), (2, 4)])
@pytest.mark.parametrize("program", PROGRAMS)
def test_planned_on_eight_devices(program: str, mesh: tuple[int, ...]) -> None:
    function, shapes = PROGRAMS[program]()
    module = module_of(function, *shapes)
    graph = import_graph(module)
    arguments = values(graph)
    expected = interpreted(module, arguments)
    executable = planned(module, graph, Options(mesh=mesh))
    assert executable.collectives()  # it is not simply replicated
    for got, want in zip(executable(*arguments), expected, strict=True):
        np.testing.assert_allclose(np.asarray(got), want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("mesh", [(8,), (2, 4)])
def test_planned_under_a_memory_limit(mesh: tuple[int, ...]) -> None:
    function, shapes = adam_step(3, 32, 64)
    module = module_of(function, *shapes)
    graph = import_graph(module)
    arguments = values(graph)
    expected = interpreted(module, arguments)
    room = plan_sharding(graph, host(8), Options(mesh=mesh), model=EAGER).predicted.memory.peak_bytes
    executable = planned(module, graph, Options(mesh=mesh, memory_limit=room * 3 // 4))
    assert executable.collectives()
    for got, want in zip(executable(*arguments), expected, strict=True):
        np.testing.assert_allclose(np.asarray(got), want, rtol=2e-5, atol=2e-6)
