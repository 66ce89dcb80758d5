"""Memory of what XLA keeps longer, shorter or twice, by how a plan splits it: against the buffers it assigned."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
import pytest
from jaxlib.mlir import ir
from search_programs import host, module_of, spec

from rhino.compile import compile_module
from rhino.ir.import_graph import import_graph
from rhino.ir.write_layouts import annotate
from rhino.program import Graph
from rhino.program.memory import lifetimes
from rhino.program.siblings import merged
from rhino.sharding import Options, Solution, plan_sharding
from rhino.sharding.cuts import cut_at
from rhino.sharding.kept import local_bytes, memory, shorter
from rhino.sharding.sliced import sliced
from rhino.sharding.stacks import stacks
from rhino.xla.catalogue import behaviour

MIB = 2**20
ROWS, WIDTH, WIDE = 8192, 256, 4096


def planned(
    function: Callable[..., Any],
    *arguments: Any,
    pins: dict[int, tuple[tuple[str, ...], ...]],
    target: str = "h100",
    whole: bool = False,
    donate: tuple[int, ...] = (),
    result: tuple[tuple[str, ...], ...] | None = None,
) -> tuple[ir.Module, Graph, Solution]:
    """The plan for eight GPUs, with some arguments pinned, and the result, or all results whole, if wanted so."""
    module = module_of(function, *arguments, donate=donate)
    graph = import_graph(module)
    for index, dims in pins.items():
        graph.pins[graph.arguments[index].value] = (f"argument {index}", dims)
    for v in graph.outputs if whole else ():
        graph.pins[v] = ("a result", ((),) * len(graph.values[v].shape))
    if result is not None:
        graph.pins[graph.outputs[0]] = ("the result", result)
    return module, graph, plan_sharding(graph, host(8, target=target), Options(mesh=(8,)))


def ratio(module: ir.Module, graph: Graph, solution: Solution, target: str = "h100") -> float:
    """Predicted over compiled peak."""
    predicted = memory(solution.costs, solution.states, lifetimes(graph)).peak_bytes
    annotate(module, graph, solution)
    return predicted / compile_module(str(module), target, devices=8).memory_analysis().peak_bytes


def kept_twice(solution: Solution) -> list[tuple[int, int, int]]:
    costs, states = solution.costs, solution.states
    return list(stacks(costs, states, partial(local_bytes, costs, states)))


def read_in_parts() -> tuple[ir.Module, Graph, Solution]:
    """All on each device whole, but for a weight's gradient, to which each gives some rows, long after the layer."""

    def step(x: jax.Array, up: jax.Array, down: jax.Array) -> tuple[jax.Array, jax.Array]:
        hidden = jax.nn.relu(x @ up)
        y = jnp.tanh(jnp.tanh(hidden @ down) @ up) @ down
        return jnp.einsum("rw,rd->wd", hidden, y), y

    pins = {0: ((), ()), 1: ((), ()), 2: ((), ())}
    module, graph, solution = planned(step, spec(ROWS, WIDTH), spec(WIDTH, WIDE), spec(WIDE, WIDTH), pins=pins)
    costs = solution.costs
    last = max(costs.heavy)
    (node,) = (n for n in costs.problem.nodes if n.kind == "op" and n.ops == [last])
    rule = graph.ops[last].rule
    assert rule is not None
    (rows,) = (i for i, f in enumerate(node.factors) if f in rule.operands[0][0] or f in rule.operands[0][1]
               if f not in {g for dim in rule.results[0] for g in dim})  # fmt: skip
    k = costs.quotient.klass[node.index]
    states = tuple((rows + 1,) if c == k else (0,) for c in range(len(solution.states)))
    return module, graph, replace(solution, states=states)


def test_what_is_read_in_parts_later_is_given_up_after_it_was_read_whole(gpu_compiler: None) -> None:
    module, graph, solution = read_in_parts()
    life = lifetimes(graph)
    found = sliced(solution.costs, solution.states, life)
    (hidden,) = (v for v in found.ends if graph.values[v].shape == (ROWS, WIDE))
    assert found.ends[hidden] == life.readers[hidden][1][0]
    without = memory(solution.costs, solution.states, replace(life, readers={})).peak_bytes
    now = memory(solution.costs, solution.states, life).peak_bytes
    assert without - now > ROWS * WIDE * 4 * 3 // 4
    assert ratio(module, graph, solution) == pytest.approx(1, abs=0.05)


def test_a_cut_leaves_out_what_is_given_up() -> None:
    _, graph, solution = read_in_parts()
    life, costs = lifetimes(graph), solution.costs
    ends = sliced(costs, solution.states, life).ends
    (hidden,) = (v for v in shorter(costs, solution.states, life, ends) if graph.values[v].shape == (ROWS, WIDE))
    at = life.readers[hidden][1][1] + 2
    full, less = (cut_at(costs, solution.states, lives, at, 1) for lives in (replace(life, readers={}), life))
    assert sum(full.values.values()) - sum(less.values.values()) == ROWS * WIDE * 4


def layers(ws: jax.Array, x: jax.Array) -> jax.Array:
    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return jnp.tanh(x @ w), None

    return jax.lax.scan(layer, x, ws)[0]


@pytest.mark.parametrize(("dim", "copies"), [(1, 0), (2, 1)])
def test_a_stack_gathered_along_an_inner_dimension_is_kept_twice(dim: int, copies: int, gpu_compiler: None) -> None:
    weights = tuple(("x",) if d == dim else () for d in range(3))
    pins = {0: weights, 1: (("x",), ())}
    module, graph, solution = planned(layers, spec(24, 2048, 2048), spec(65536, 2048), pins=pins)
    assert len(kept_twice(solution)) == copies
    # The copy is 48 MiB of some 220.
    assert ratio(module, graph, solution) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(("dim", "stacked", "copies"), [(1, 2, 1), (1, 1, 1), (0, 2, 0)])
def test_what_a_loop_stacks_is_laid_out_anew_for_gathers_of_another(
    dim: int, stacked: int, copies: int, gpu_compiler: None
) -> None:
    """Rows, or what is made of two element by element, are gathered along their inner dimension, or their outer one."""
    rows, wide = 4096, 8192

    def step(ws: jax.Array, v: jax.Array, x: jax.Array) -> jax.Array:
        def first(none: None, w: jax.Array) -> tuple[None, tuple[jax.Array, ...]]:
            made = jnp.tanh(x @ w)
            return none, (made, jnp.exp(made))[:stacked]

        def second(total: jax.Array, row: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
            return total + math.prod(row[1:], start=row[0]) @ v, None

        _, made = jax.lax.scan(first, None, ws)
        return jax.lax.scan(second, jnp.zeros((rows, wide)), made)[0]

    split = tuple(("x",) if d == dim else () for d in range(2))
    pins = {0: ((), (), split[1]), 1: ((), ("x",)), 2: (split[0], ())}
    arguments = spec(24, 64, wide), spec(wide, wide), spec(rows, 64)
    module, graph, solution = planned(step, *arguments, pins=pins, result=((), ("x",)))
    assert len(kept_twice(solution)) == copies
    # A copy is 384 MiB of some 1,200, or 800: of two stacks, one is given up before the other is copied.
    assert ratio(module, graph, solution) == pytest.approx(1, abs=0.05)


@pytest.mark.skipif(
    not behaviour("fills-merged").holds("h100", jaxlib.__version__), reason="this version of XLA fills each apart"
)
def test_zeros_of_one_shape_are_there_from_the_first_on(gpu_compiler: None) -> None:
    def gradients(first: jax.Array, second: jax.Array, x: jax.Array) -> Any:
        def loss(first: jax.Array, second: jax.Array) -> jax.Array:
            return jnp.sum(layers(second, jnp.sin(layers(first, x))) ** 2)

        return jax.grad(loss, argnums=(0, 1))(first, second)

    pins = {0: ((), (), ()), 1: ((), (), ()), 2: (("x",), ())}
    stack = spec(8, 1024, 1024)
    module, graph, solution = planned(gradients, stack, stack, spec(32768, 1024), pins=pins, whole=True)
    # The second loop's are there in the first, 32 of some 1,000 MiB.
    assert ratio(module, graph, solution) == pytest.approx(1, abs=0.02)


def test_results_that_share_their_computing_are_written_together(gpu_compiler: None) -> None:
    def gradients(up: jax.Array, down: jax.Array, x: jax.Array) -> Any:
        @jax.checkpoint
        def layer(up: jax.Array, down: jax.Array, x: jax.Array) -> jax.Array:
            return x + jax.nn.silu(x @ up) @ down

        return jax.grad(lambda *a: jnp.sum(layer(*a) ** 2), argnums=(0, 1, 2))(up, down, x)

    pins = {0: ((), ()), 1: ((), ()), 2: (("x",), ())}
    arguments = spec(512, 4096), spec(4096, 512), spec(65536, 512)
    module, graph, solution = planned(gradients, *arguments, pins=pins, target="v100")
    kernel = next(k for k in merged(graph) if graph.values[k.results[0]].shape == (65536, 4096))
    assert len(kernel.read) == 2
    # What is made anew, the gradient of the layer, what both are made of: 128 MiB each.
    assert ratio(module, graph, solution, "v100") == pytest.approx(1, abs=0.06)


def test_a_gradient_is_a_partial_sum_or_reduced_and_not_both(gpu_compiler: None) -> None:
    def gradients(ws: list[jax.Array], x: jax.Array) -> Any:
        def loss(ws: list[jax.Array]) -> jax.Array:
            y = x
            for w in ws:
                y = jnp.tanh(y @ w)
            return jnp.sum(y**2)

        found = jax.grad(loss)(ws)
        norm = sum(jnp.sum(g**2) for g in found)
        return [w - g / norm for w, g in zip(ws, found, strict=True)]

    count = 12
    whole: tuple[tuple[str, ...], ...] = ((), ())
    pins = dict.fromkeys(range(count), whole) | {count: (("x",), ())}
    weights, x = [spec(2048, 2048)] * count, spec(16384, 2048)
    module, graph, solution = planned(gradients, weights, x, pins=pins, whole=True, donate=(0,))
    assert solution.predicted.collectives["all-reduce"] >= count
    # Twelve weights, their gradients, the results: 16 MiB each.
    assert ratio(module, graph, solution) == pytest.approx(1, abs=0.06)
