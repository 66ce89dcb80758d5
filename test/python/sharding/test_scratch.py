"""Memory that XLA takes because a GPU lacks bfloat16 arithmetic, against the buffers it assigned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jaxlib.mlir import ir
from search_programs import host, module_of, spec

from rhino.compile import compile_module
from rhino.errors import RhinoError
from rhino.ir.import_graph import import_graph
from rhino.ir.write_layouts import annotate
from rhino.program import Graph
from rhino.program.memory import lifetimes
from rhino.sharding import Options, Solution, plan_sharding
from rhino.sharding.kept import memory

ROWS, WIDTH = 32768, 1024
BF16 = jnp.bfloat16


def gradients(bias: bool) -> Callable[..., Any]:
    """Of a residual block of two dense layers around GELU, computed again in the backward pass."""

    @jax.checkpoint
    def layer(up: jax.Array, down: jax.Array, b: jax.Array, x: jax.Array) -> jax.Array:
        hidden = x @ up + b if bias else x @ up
        return x + jax.nn.gelu(hidden) @ down

    def loss(*arguments: jax.Array) -> jax.Array:
        return jnp.sum(layer(*arguments).astype(jnp.float32) ** 2)

    return jax.grad(loss, argnums=(0, 1, 2, 3))


def planned(target: str, bias: bool) -> tuple[ir.Module, Graph, Solution]:
    """The program as a graph, and its plan for two GPUs."""
    up, down, b, x = (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH), (4 * WIDTH,), (ROWS, WIDTH)
    module = module_of(gradients(bias), *(spec(*shape, dtype=BF16) for shape in (up, down, b, x)))
    graph = import_graph(module)
    return module, graph, plan_sharding(graph, host(2, target=target), Options(mesh=(2,)))


def kept(graph: Graph, solution: Solution) -> list[tuple[str, int]]:
    """What is kept besides the program's values: the op that makes the value, and how many bytes per element."""
    found = solution.costs.scratch(lifetimes(graph))
    return [
        (graph.ops[graph.values[s.value].producer].name.removeprefix("stablehlo."), s.nbytes // size)
        for s in found
        if graph.values[s.value].producer >= 0 and (size := graph.values[s.value].elements) >= ROWS * WIDTH
    ]


def test_where_arithmetic_is_bfloat16_a_tanh_is_kept_that_a_kernel_with_a_sum_shares() -> None:
    _, graph, solution = planned("h100", bias=True)
    assert kept(graph, solution) == [("tanh", 2)]
    # Without a bias one kernel makes GELU again, and its gradient.
    _, graph, solution = planned("h100", bias=False)
    assert not kept(graph, solution)


def test_what_two_kernels_share_is_kept_as_float32_where_a_bias_is_summed() -> None:
    _, graph, solution = planned("a100", bias=True)
    # GELU's result could have been given up before its gradient is there.
    assert kept(graph, solution) == [("tanh", 4), ("multiply", 2)]
    _, graph, solution = planned("a100", bias=False)
    assert not kept(graph, solution)


def test_what_dots_read_and_make_is_float32_where_they_have_no_bfloat16() -> None:
    _, graph, solution = planned("v100", bias=False)
    # Both layers, the first again, and the gradients of what each is given.
    dots = [entry for entry in kept(graph, solution) if entry[0] == "dot_general"]
    # And what GELU and its gradient are made of, beside both.
    assert dots == [("dot_general", 4)] + [("dot_general", 2)] * 5


@pytest.mark.parametrize("target", ["v100", "a100", "h100"])
@pytest.mark.parametrize("bias", [True, False])
def test_the_peak_is_near_what_xla_assigned(target: str, bias: bool, gpu_compiler: None) -> None:
    module, graph, solution = planned(target, bias)
    annotate(module, graph, solution)
    measured = compile_module(str(module), target, devices=2).memory_analysis().peak_bytes
    # Without any of it: 0.55 of the peak. On V100s without what is written together: 0.78.
    assert solution.predicted.memory.peak_bytes == pytest.approx(measured, rel=0.25 if target == "a100" else 0.05)


@pytest.mark.parametrize(
    "target, dtype, exact, held",
    [
        ("h100", BF16, False, 2), ("a100", BF16, False, 4), ("h100", jnp.float32, False, 0),
        ("h200", jnp.float32, False, 4), ("h100", jnp.float32, True, 4), ("v100", BF16, False, 0),
    ],
)  # fmt: skip
def test_gelu_of_the_forward_pass_is_kept_for_the_backward_pass(
    target: str, dtype: Any, exact: bool, held: int, gpu_compiler: None
) -> None:
    """Of layers that are not computed again: the tanh of each, or its erfc, from where it is made first."""

    def loss(layers: list[tuple[jax.Array, jax.Array]], x: jax.Array) -> jax.Array:
        for up, down in layers:
            x = x + jax.nn.gelu(x @ up, approximate=not exact) @ down
        return jnp.sum(x.astype(jnp.float32) ** 2)

    layer = (spec(WIDTH, 4 * WIDTH, dtype=dtype), spec(4 * WIDTH, WIDTH, dtype=dtype))
    module = module_of(jax.grad(loss), [layer] * 4, spec(ROWS // 4, WIDTH, dtype=dtype))
    graph = import_graph(module)
    solution = plan_sharding(graph, host(1, target=target), Options(mesh=(1,)))
    costly = ("stablehlo.tanh", "chlo.erfc")
    found = [
        (s.nbytes // graph.values[s.value].elements, s.last - s.first > 10)
        for s in solution.costs.scratch(lifetimes(graph))
        if graph.ops[graph.values[s.value].producer].name in costly
    ]
    assert [size for size, is_long in found if is_long] == [held] * (4 if held else 0)
    annotate(module, graph, solution)
    measured = compile_module(str(module), target).memory_analysis().peak_bytes
    # Without what is kept: 0.7 of it.
    assert solution.predicted.memory.peak_bytes == pytest.approx(measured, rel=0.1)


def gathered(target: str) -> tuple[ir.Module, Graph, Solution]:
    """Two dense layers on two GPUs, the second on each device whole: it reads what the first leaves in rows."""

    def step(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        return jnp.tanh(x @ up) @ down

    module = module_of(step, *(spec(*s, dtype=BF16) for s in ((ROWS, WIDTH), (WIDTH, 8 * WIDTH), (8 * WIDTH, WIDTH))))
    graph = import_graph(module)
    found = plan_sharding(graph, host(2, target=target), Options(mesh=(2,)))
    second = max(o for o in found.costs.heavy)
    (k,) = (found.costs.quotient.klass[n.index] for n in found.problem.nodes if n.ops == [second])
    return module, graph, replace(found, states=tuple((0,) if c == k else s for c, s in enumerate(found.states)))


@pytest.mark.parametrize("target", ["v100", "h100"])
def test_what_a_dot_reads_gathered_is_float32_besides(target: str, gpu_compiler: None) -> None:
    module, graph, solution = gathered(target)
    predicted = memory(solution.costs, solution.states, lifetimes(graph)).peak_bytes
    annotate(module, graph, solution)
    measured = compile_module(str(module), target, devices=2).memory_analysis().peak_bytes
    # What is kept in rows counts until the dot, though gathering it is its last use. Without the copy: 0.73 of it.
    assert 0.99 < predicted / measured < (1.4 if target == "v100" else 1.15)


def test_a_limit_counts_what_is_kept() -> None:
    _, graph, solution = planned("a100", bias=True)
    needed = solution.predicted.memory.peak_bytes
    tight = plan_sharding(graph, host(2, target="h100"), Options(mesh=(2,), memory_limit=needed))
    assert tight.predicted.memory.peak_bytes < needed
    with pytest.raises(RhinoError, match="cannot be met"):
        plan_sharding(graph, host(2, target="a100"), Options(mesh=(2,), memory_limit=needed * 3 // 4))
