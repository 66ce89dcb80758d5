"""Compute time: the slower of arithmetic and memory, per op, in closed form."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from search_programs import graph_of, host, spec

from rhino.machine.model import Efficiency
from rhino.machine.rates import AttentionRates, ElementRates, KernelRates, ProductRates
from rhino.machine.roofline import heavy_times, launch_seconds, op_seconds
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
    (heavy,) = heavy_times(graph, HOST).values()
    moved = [seconds for _, seconds in heavy.moved]
    assert heavy.arithmetic_s == pytest.approx(2 * 4 * 2048 * 512 / 1e13)
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


def test_products_of_vectors_are_made_element_by_element() -> None:
    """Where products are priced by tiles, these are priced by bytes; on a CPU a matrix by a vector is a product."""
    tiles = {"f32": ProductRates(start_s=1.0, tile_s=1.0, tile_depth_s=1.0, depth_s=1.0)}
    gpu = replace(HOST, device=replace(HOST.device, kernels=KernelRates(1, 0.0, tiles), xla_target="h100"))
    cpu = replace(gpu, device=replace(gpu.device, xla_target="cpu"))
    of_vector = graph_of(lambda a, b: jnp.einsum("btc,bc->bt", a, b), spec(4, 256, 128), spec(4, 128))
    outer = graph_of(lambda a, b: jnp.einsum("bt,bc->btc", a, b), spec(4, 256), spec(4, 128))
    nbytes = 4 * (256 * 128 + 256 + 128) * 4
    for graph in (of_vector, outer):
        assert seconds(graph, "dot_general", gpu) == pytest.approx(nbytes / 1e12)
    assert seconds(outer, "dot_general", cpu) == pytest.approx(nbytes / 1e12)
    assert seconds(of_vector, "dot_general", cpu) > 1


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


@pytest.mark.parametrize("direction, products, expected_s", [("attention", 2, 2e-6), ("attention-backward", 5, 4e-6)])
def test_attention_is_priced_by_scores_and_rows(direction: str, products: int, expected_s: float) -> None:
    """Heads of 64 and values of 32, 128 scores for each of 1,024 queries; a device without rates has shares."""
    scores, rows = 128 * 1024, 1024
    values = [Value(i, (1, 1024, 1, 64 if i < 2 else 32), "bf16", -1) for i in range(3)]
    values.append(Value(3, (1, 1024, 1, 32), "bf16", 0))
    described = Kernel("attention", products * scores * 96, 1, "bf16", direction)
    op = Op(0, "stablehlo.custom_call", (0, 1, 2), (3,), None, described.flops, region_end=1, kernel=described)
    graph = Graph(values, [op], [Argument(i, f"x{i}") for i in range(3)], (3,))
    rates = {
        "forward": AttentionRates(1e-6 / (2 * scores * 96), 0.5e-6 / scores, 0.5e-6 / rows),
        "backward": AttentionRates(2e-6 / (5 * scores * 96), 1e-6 / scores, 1e-6 / rows),
    }
    device = replace(HOST.device, kernels=KernelRates(10, 0.0, attention=rates))
    assert seconds(graph, "custom_call", replace(HOST, device=device)) == pytest.approx(expected_s)
    assert seconds(graph, "custom_call") == pytest.approx(described.flops / HOST.device.matmul_peak("bf16"))


def test_a_kernel_moves_what_it_says_and_parts_of_what_is_split() -> None:
    graph = kernel(0, 2**24, "vector")  # four times its operand and result
    assert seconds(graph, "custom_call") == pytest.approx(2**24 / 1e12)
    assert sum(seconds for _, seconds in heavy_times(graph, HOST)[0].moved) == pytest.approx(2**24 / 1e12)
    problem = build_problem(graph)
    costs = Costs.on(ProgramTimes.of(problem, tie_repeats(problem), TimeModel(HOST)), (4,))
    (node,) = (n for n in problem.nodes if n.kind == "op")
    k = costs.quotient.klass[node.index]
    # Only the first factor may be split.
    assert node.limits == (1024,)
    assert costs.node(k, (1,)) == pytest.approx(costs.node(k, (0,)) / 4)


# 10 multiprocessors; a tile of 64 x 64 takes 1 us, and 10 ns for each element of its sums.
RATES = ProductRates(start_s=5e-6, tile_s=1e-6, tile_depth_s=1e-8, depth_s=1e-9)
GPU = replace(HOST, device=replace(HOST.device, kernels=KernelRates(10, 3e-6, {"f32": RATES})))


def share(graph: Graph, sizes: tuple[int, ...], cluster=GPU) -> list[float]:  # type: ignore[no-untyped-def]
    """Seconds of the only heavy op under each state of the one axis of a mesh."""
    problem = build_problem(graph)
    costs = Costs.on(ProgramTimes.of(problem, tie_repeats(problem), TimeModel(cluster)), sizes)
    (node,) = (n for n in problem.nodes if n.kind == "op")
    k = costs.quotient.klass[node.index]
    return [costs.node(k, (s,)) for s in range(node.states)]


def test_a_share_of_a_product_takes_what_a_product_of_its_shape_takes() -> None:
    graph = graph_of(jnp.matmul, spec(1280, 4096), spec(4096, 640))
    whole, rows, columns, depth = share(graph, (4,))
    assert whole == pytest.approx(5e-6 + 20 * 10 / 10 * (1e-6 + 4096e-8) + 4096e-9)
    assert rows == pytest.approx(5e-6 + 5 * 10 / 10 * (1e-6 + 4096e-8) + 4096e-9)
    # 160 columns are three tiles.
    assert columns == pytest.approx(5e-6 + 20 * 3 / 10 * (1e-6 + 4096e-8) + 4096e-9)
    assert depth == pytest.approx(5e-6 + 20 * 10 / 10 * (1e-6 + 1024e-8) + 1024e-9)


def test_additions_that_wait_for_each_other_are_fewer_only_where_what_is_added_is_divided() -> None:
    def gradient(ids: jax.Array, updates: jax.Array) -> jax.Array:
        return jnp.zeros((4, 128), jnp.bfloat16).at[ids].add(updates)

    graph = graph_of(gradient, spec(256, dtype=jnp.int32), spec(256, 128, dtype=jnp.bfloat16))
    device = HOST.device
    elements = ElementRates(operation_s=0.0, row_exponential_s=0.0, addition_s=0.0, clash_s=1e-4)
    kernels = KernelRates(10, 3e-6, {}, elements=elements)
    found = share(graph, (4,), replace(HOST, device=replace(device, kernels=kernels)))
    # Each element waits for 63 others, on a device that has all rows and a quarter of the columns, too.
    waiting = 63e-4
    assert sorted(round(s / waiting, 2) for s in found) == [0.25, *[1.0] * (len(found) - 1)]
    assert len(found) > 2


def test_slivers_leave_multiprocessors_idle() -> None:
    graph = graph_of(jnp.matmul, spec(640, 4096), spec(4096, 64))
    whole, rows, *_ = share(graph, (4,))
    assert whole == rows == pytest.approx(5e-6 + (1e-6 + 4096e-8) + 4096e-9)


def test_a_thin_product_waits_for_memory() -> None:
    graph = graph_of(jnp.matmul, spec(1, 8192), spec(8192, 8192))
    slow = replace(GPU, efficiency=Efficiency(memory=0.1))
    assert share(graph, (4,), slow)[0] == pytest.approx(3e-6 + (8192 * 8192 + 2 * 8192) * 4 / 1e11)


def test_batches_are_read_off_the_rule() -> None:
    batched = graph_of(lambda x, y: jnp.einsum("bhqd,bhkd->bhqk", x, y), *[spec(4, 8, 640, 64)] * 2)
    assert share(batched, (2,))[0] == pytest.approx(5e-6 + 4 * 8 * 100 / 10 * (1e-6 + 64e-8) + 64e-9)


@pytest.mark.parametrize(("stride", "positions"), [(1, 64 * 64), (2, 32 * 32)])
def test_rows_of_a_convolution_are_all_positions_of_its_result(stride: int, positions: int) -> None:
    """Also where the window moves by more than one, and positions are in no factor of the rule."""

    def convolve(x: jax.Array, k: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(x, k, (stride, stride), "SAME", dimension_numbers=("NHWC", "OHWI", "NHWC"))

    graph = graph_of(convolve, spec(10, 64, 64, 128), spec(256, 3, 3, 128))
    depth, tiles = 9 * 128, 10 * positions / 64 * 256 / 64
    assert share(graph, (2,))[0] == pytest.approx(5e-6 + tiles / 10 * (1e-6 + depth * 1e-8) + depth * 1e-9)


def test_products_reach_their_share_of_what_they_reach_alone() -> None:
    graph = graph_of(jnp.matmul, spec(1280, 4096), spec(4096, 640))
    slow = replace(GPU, efficiency=Efficiency(matmul=0.5))
    assert share(graph, (4,), slow)[0] - 5e-6 == pytest.approx(2 * (share(graph, (4,))[0] - 5e-6))


def test_types_without_rates_of_their_own_are_scaled_by_the_peak() -> None:
    device = replace(GPU.device, peak_flops={"f32": 1e13, "bf16": 4e13}, kernels=KernelRates(10, 0.0, {"bf16": RATES}))
    assert device.product_rates("bf16") == RATES
    assert device.product_rates("f32") == ProductRates(5e-6, 1e-6, 4e-8, 4e-9)
    # f8 runs as f16, which runs as f32 here.
    assert device.product_rates("f8E4M3FN") == device.product_rates("f32")
    assert HOST.device.product_rates("f32") is None


def test_a_launch_is_paid_by_each_kernel_and_divided_by_no_plan() -> None:
    graph = graph_of(lambda x: jnp.tanh(x * 2 + 1), spec(1024, 1024))
    assert sum(launch_seconds(graph, GPU)) == pytest.approx(3e-6)
    assert sum(launch_seconds(graph, HOST)) == 0
    problem = build_problem(graph)
    costs = Costs.on(ProgramTimes.of(problem, tie_repeats(problem), TimeModel(GPU)), (4,))
    moved_s = 2 * 1024 * 1024 * 4 / 1e12
    assert [costs.node(0, (s,)) for s in (0, 1)] == pytest.approx([3e-6 + moved_s, 3e-6 + moved_s / 4])
    assert costs.least_s == pytest.approx(3e-6 + moved_s / 4)


def test_a_launch_in_a_loop_is_paid_every_trip() -> None:
    graph = graph_of(lambda x: jax.lax.fori_loop(0, 7, lambda _, v: jnp.tanh(v), x), spec(512, 512))
    assert sum(launch_seconds(graph, GPU)) >= 7 * 3e-6


def test_a_long_sum_launches_another_kernel() -> None:
    graph = graph_of(lambda x: jnp.sum(x, axis=0), spec(4 * 4096 + 1, 256))
    assert sum(launch_seconds(graph, GPU)) == pytest.approx(2 * 3e-6)
    # On more devices none has a long part.
    more = replace(GPU, devices_per_host=8, levels=(replace(GPU.levels[0], size=8),))
    assert (GPU.num_devices, more.num_devices) == (4, 8)
    assert sum(launch_seconds(graph, more)) == pytest.approx(3e-6)


@pytest.mark.parametrize(("target", "copies"), [("v100", 1), ("h100", 0)])
def test_weights_of_16_bits_that_a_loop_reads_are_copied_wide_each_trip(target: str, copies: int) -> None:
    def loop(w: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 7, lambda _, h: jnp.tanh(h @ w) + h @ w, x)

    gpu = replace(GPU, device=replace(GPU.device, xla_target=target))
    sizes = (1024, 1024), (2048, 1024)
    narrow, wide = (graph_of(loop, *(spec(*size, dtype=dtype) for size in sizes)) for dtype in ("bfloat16", "float32"))
    copied = 0.0
    for op in narrow.ops:
        if op.name == "stablehlo.dot_general":
            copied += sum(seconds for _, seconds in heavy_times(narrow, gpu)[op.index].copied)
    # The weights, once for both products, and what the trip begins with; of float32 nothing is.
    assert copied == pytest.approx(copies * (1024 * 1024 + 2048 * 1024) * 6 / 1e12)
    assert not any(times.copied for times in heavy_times(wide, gpu).values())


def test_a_kernel_in_another_order_is_copied_and_its_gradient_too() -> None:
    def convolve(order: str, k: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", order, "NHWC"))

    image, kernel, theirs = spec(8, 32, 32, 64), spec(3, 3, 64, 128), spec(128, 3, 3, 64)
    bytes_s = 2 * 3 * 3 * 64 * 128 * 4 / 1e12
    step = jax.grad(lambda k, x, order: convolve(order, k, x).sum())
    for function in (lambda k, x, order: convolve(order, k, x), step):
        here = graph_of(partial(function, order="HWIO"), kernel, image)
        there = graph_of(partial(function, order="OHWI"), theirs, image)
        ours, libraries = (seconds(graph, "convolution", GPU) for graph in (here, there))
        assert ours - libraries == pytest.approx(3e-6 + bytes_s)
        assert seconds(here, "convolution") == seconds(there, "convolution")  # on a CPU
