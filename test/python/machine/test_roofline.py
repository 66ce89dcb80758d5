"""Compute time: the slower of arithmetic and memory, per op, in closed form."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from search_programs import graph_of, host, spec

from rhino.machine.model import Efficiency
from rhino.machine.roofline import matmul_seconds, op_seconds
from rhino.program import Graph
from rhino.program.data import Argument, Kernel, Op, Rule, Value
from rhino.sharding.cones import build_problem
from rhino.sharding.costs import Costs
from rhino.sharding.symmetry import tie_repeats
from rhino.sharding.time_model import ProgramTimes, TimeModel

HOST = host(4)  # 10 TFLOP/s, 1 TB/s


def seconds(graph: Graph, name: str, cluster=HOST) -> float:  # type: ignore[no-untyped-def]
    found = op_seconds(graph, cluster)
    assert len(found) == len(graph.ops)
    (op,) = (op for op in graph.ops if op.name == f"stablehlo.{name}")
    return found[op.index]


def test_a_large_dot_is_bound_by_arithmetic() -> None:
    graph = graph_of(jnp.matmul, spec(2048, 2048), spec(2048, 2048))
    assert seconds(graph, "dot_general") == pytest.approx(2 * 2048**3 / 1e13)


def test_a_thin_dot_is_bound_by_memory() -> None:
    graph = graph_of(jnp.matmul, spec(1, 2048), spec(2048, 2048))
    assert seconds(graph, "dot_general") == pytest.approx((2048 * 2048 + 2 * 2048) * 4 / 1e12)


def test_element_wise_ops_are_bound_by_memory() -> None:
    graph = graph_of(jnp.tanh, spec(1024, 1024))
    assert seconds(graph, "tanh") == pytest.approx(2 * 1024 * 1024 * 4 / 1e12)


def test_a_loop_pays_for_every_trip() -> None:
    one = graph_of(lambda x, w: jnp.tanh(x @ w), spec(512, 512), spec(512, 512))
    many = graph_of(
        lambda x, w: jax.lax.fori_loop(0, 7, lambda _, v: jnp.tanh(v @ w), x), spec(512, 512), spec(512, 512)
    )
    assert seconds(many, "dot_general") == pytest.approx(7 * seconds(one, "dot_general"))


def test_a_convolution_counts_its_window() -> None:
    def convolve(x: jax.Array, k: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    graph = graph_of(convolve, spec(32, 64, 64, 128), spec(3, 3, 128, 256))
    assert seconds(graph, "convolution") == pytest.approx(2 * 32 * 64 * 64 * 256 * 9 * 128 / 1e13)


def test_the_rate_is_that_of_the_operands_type() -> None:
    device = replace(HOST.device, peak_flops={"f32": 1e13, "bf16": 4e13})
    fast = replace(HOST, device=device)
    half = graph_of(jnp.matmul, *[spec(2048, 2048, dtype=jnp.bfloat16)] * 2)
    assert seconds(half, "dot_general", fast) == pytest.approx(2 * 2048**3 / 4e13)
    # f32 dots run in TF32 where there is any.
    tf32 = replace(HOST, device=replace(device, peak_flops={"f32": 1e13, "tf32": 2e13}))
    single = graph_of(jnp.matmul, *[spec(2048, 2048)] * 2)
    assert seconds(single, "dot_general", tf32) == pytest.approx(2 * 2048**3 / 2e13)


def test_efficiency_slows_both_down() -> None:
    slow = replace(HOST, efficiency=Efficiency(matmul=0.5, memory=0.25))
    dot = graph_of(jnp.matmul, *[spec(2048, 2048)] * 2)
    tanh = graph_of(jnp.tanh, spec(1024, 1024))
    assert seconds(dot, "dot_general", slow) == pytest.approx(2 * seconds(dot, "dot_general"))
    assert seconds(tanh, "tanh", slow) == pytest.approx(4 * seconds(tanh, "tanh"))


def test_a_dots_arithmetic_and_tensors_apart() -> None:
    # A sharded dot reads a replicated operand whole: each tensor is divided by the axes that split it, and only those.
    graph = graph_of(jnp.matmul, spec(4, 2048), spec(2048, 512))
    ((compute_s, moved),) = matmul_seconds(graph, HOST).values()
    assert compute_s == pytest.approx(2 * 4 * 2048 * 512 / 1e13)
    assert moved == pytest.approx([4 * 2048 * 4 / 1e12, 2048 * 512 * 4 / 1e12, 4 * 512 * 4 / 1e12])
    (dot,) = (n for n, node in enumerate(build_problem(graph).nodes) if node.kind == "op")
    problem = build_problem(graph)
    quotient = tie_repeats(problem)
    costs = Costs.on(ProgramTimes.of(problem, quotient, TimeModel(HOST)), (4,))
    k = quotient.klass[dot]
    x, w, y = moved
    # Whole; rows, columns, and the contracted dimension split four ways.
    expected = [x + w + y, x / 4 + w + y / 4, x + w / 4 + y / 4, x / 4 + w / 4 + y]
    assert [costs.node(k, (s,)) for s in range(4)] == pytest.approx(expected)


def kernel(flops: int, nbytes: int, rate: str) -> Graph:
    """One call that reads [1024, 1024] and makes as much."""
    values = [Value(0, (1024, 1024), "bf16", -1), Value(1, (1024, 1024), "bf16", 0)]
    rule = Rule((1024, 1024), (((0,), (1,)),), (((0,), (1,)),), replicate=(1,))
    described = Kernel("mine", flops, nbytes, "bf16", rate)
    op = Op(0, "stablehlo.custom_call", (0,), (1,), rule, flops, region_end=1, kernel=described)
    return Graph(values, [op], [Argument(0, "x")], (1,))


def test_a_kernel_has_the_rate_of_its_kind() -> None:
    """Of the peak of its type a fused attention reaches its own share, and where that is not given that of products."""
    large = 10**13
    plain, measured = HOST, replace(HOST, efficiency=Efficiency(matmul=0.8, attention=0.5))
    assert seconds(kernel(large, 1, "attention"), "custom_call", plain) == pytest.approx(1.0)
    assert seconds(kernel(large, 1, "attention"), "custom_call", measured) == pytest.approx(2.0)
    assert seconds(kernel(large, 1, "attention-backward"), "custom_call", measured) == pytest.approx(1.25)
    assert seconds(kernel(large, 1, "tensor"), "custom_call", measured) == pytest.approx(1.25)


def test_a_kernel_moves_what_it_says_and_parts_of_what_is_split() -> None:
    graph = kernel(0, 2**24, "vector")  # four times its operand and result
    assert seconds(graph, "custom_call") == pytest.approx(2**24 / 1e12)
    _, moved = matmul_seconds(graph, HOST)[0]
    assert sum(moved) == pytest.approx(2**24 / 1e12)
    problem = build_problem(graph)
    costs = Costs.on(ProgramTimes.of(problem, tie_repeats(problem), TimeModel(HOST)), (4,))
    (node,) = (n for n in problem.nodes if n.kind == "op")
    k = costs.quotient.klass[node.index]
    # Only the first factor may be split.
    assert node.limits == (1024,)
    assert costs.node(k, (1,)) == pytest.approx(costs.node(k, (0,)) / 4)
