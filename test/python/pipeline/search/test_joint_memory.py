"""Memory of stages: arguments and accumulators once, what forward saves once for each micro-batch in flight."""

from __future__ import annotations

from itertools import pairwise

import pytest

from rhino.dialect.attributes import RhinoStage
from rhino.dialect.context import make_context, parse_text
from rhino.ir.import_graph import import_graph, number_program
from rhino.passes.entry import main_function
from rhino.pipeline.program import StageMemory, peak_bytes
from rhino.pipeline.search.fragment_lives import Staging
from rhino.pipeline.search.memory import stage_memory
from rhino.pipeline.search.sharded import pipelined, prepare
from rhino.program.memory import lifetimes

W, X, SLICE = 16 * 16 * 4, 8 * 16 * 4, 2 * 16 * 4  # bytes of a parameter, the batch, a micro-batch
STEP = """
func.func @main(%w0: tensor<16x16xf32> {rhino.role = "param"}, %w1: tensor<16x16xf32> {rhino.role = "param"},
                %x: tensor<8x16xf32> {rhino.role = "batch"}) -> (tensor<16x16xf32>, tensor<16x16xf32>) {
  %zeros = stablehlo.constant dense<0.0> : tensor<16x16xf32>
  %none = stablehlo.constant dense<0.0> : tensor<16x16xf32>
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<4> : tensor<i32>
  %xs = stablehlo.reshape %x : (tensor<8x16xf32>) -> tensor<2x4x16xf32>
  %r:3 = stablehlo.while(%i = %c0, %a0 = %zeros, %a1 = %none) : tensor<i32>, tensor<16x16xf32>, tensor<16x16xf32>
    attributes {rhino.microbatches = {count = 4 : i64}}
  cond {
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %cut = stablehlo.dynamic_slice %xs, %c0, %i, %c0, sizes = [2, 1, 16] : (tensor<2x4x16xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x1x16xf32>
    %b = stablehlo.reshape %cut : (tensor<2x1x16xf32>) -> tensor<2x16xf32>
    %h = stablehlo.dot_general %b, %w0, contracting_dims = [1] x [0] {rhino.stage = {phase = "forward", stage = 0 : i64}} : (tensor<2x16xf32>, tensor<16x16xf32>) -> tensor<2x16xf32>
    %y = stablehlo.dot_general %h, %w1, contracting_dims = [1] x [0] {rhino.stage = {phase = "forward", stage = 1 : i64}} : (tensor<2x16xf32>, tensor<16x16xf32>) -> tensor<2x16xf32>
    %g1 = stablehlo.dot_general %h, %y, contracting_dims = [0] x [0] {rhino.stage = {phase = "backward", stage = 1 : i64}} : (tensor<2x16xf32>, tensor<2x16xf32>) -> tensor<16x16xf32>
    %dh = stablehlo.dot_general %y, %w1, contracting_dims = [1] x [1] {rhino.stage = {phase = "backward", stage = 1 : i64}} : (tensor<2x16xf32>, tensor<16x16xf32>) -> tensor<2x16xf32>
    %b1 = stablehlo.add %a1, %g1 {rhino.stage = {phase = "backward", stage = 1 : i64}} : tensor<16x16xf32>
    %dd = stablehlo.multiply %dh, %h {rhino.stage = {phase = "backward", stage = 0 : i64}} : tensor<2x16xf32>
    %g0 = stablehlo.dot_general %b, %dd, contracting_dims = [0] x [0] {rhino.stage = {phase = "backward", stage = 0 : i64}} : (tensor<2x16xf32>, tensor<2x16xf32>) -> tensor<16x16xf32>
    %b0 = stablehlo.add %a0, %g0 {rhino.stage = {phase = "backward", stage = 0 : i64}} : tensor<16x16xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %b0, %b1 : tensor<i32>, tensor<16x16xf32>, tensor<16x16xf32>
  }
  %v0 = stablehlo.subtract %w0, %r#1 {rhino.stage = {phase = "update", stage = 0 : i64}} : tensor<16x16xf32>
  %v1 = stablehlo.subtract %w1, %r#2 {rhino.stage = {phase = "update", stage = 1 : i64}} : tensor<16x16xf32>
  return %v0, %v1 : tensor<16x16xf32>, tensor<16x16xf32>
}
"""  # noqa: E501 - MLIR's lines are as long as its types


@pytest.fixture(scope="module")
def stages() -> list[StageMemory]:
    return memory_of(STEP)


def memory_of(step: str, part: str = "") -> list[StageMemory]:
    """Of a step over two stages; `part` is the operation whose result its stage adds to a sum of its own."""
    module = parse_text(step, make_context())
    graph = import_graph(module)
    _, ops = number_program(main_function(module, "test"))
    given = [RhinoStage.of(op) for op in ops]
    staging = Staging(
        2,
        [-1 if data is None else data["stage"] for data in given],
        [data is not None and data["phase"] == "backward" for data in given],
        graph.microbatch_loop,
        [(graph.arguments[0].value, 0), (graph.arguments[1].value, 1), (graph.arguments[2].value, -1)],
        parts=frozenset(op.results[0] for op in graph.ops if op.name == part),
    )
    return stage_memory(graph, staging, lifetimes(graph), [v.nbytes for v in graph.values], [])


def test_arguments_are_where_they_are_read(stages: list[StageMemory]) -> None:
    assert [m.argument_bytes for m in stages] == [W + X, W + X]


def test_accumulators_are_kept_once(stages: list[StageMemory]) -> None:
    assert [m.kept_bytes for m in stages] == [W, W]


def test_saved_is_what_backward_reads_of_forward(stages: list[StageMemory]) -> None:
    # %h on stage 0; on stage 1 %h as it was received, and %y. The slice of the batch is cut again.
    assert [m.saved_bytes for m in stages] == [SLICE, 2 * SLICE]


def test_parts_that_stages_add_up_themselves_are_not_received() -> None:
    # A second part of the first gradient arises on stage 1, as that of an embedding does which is the head, too.
    added = """%s0 = stablehlo.sine %g1 {rhino.stage = {phase = "backward", stage = 1 : i64}} : tensor<16x16xf32>
    %t0 = stablehlo.add %g0, %s0 {rhino.stage = {phase = "backward", stage = 0 : i64}} : tensor<16x16xf32>
    %b0 = stablehlo.add %a0, %t0"""
    tied = STEP.replace("%b0 = stablehlo.add %a0, %g0", added)
    sent, (first, second) = memory_of(tied), memory_of(tied, "stablehlo.sine")
    # The next micro-batch's arrives while one is added.
    assert sent[0].loop_bytes - first.loop_bytes == 2 * W
    assert second.loop_bytes <= sent[1].loop_bytes - W


def test_each_micro_batch_in_flight_takes_what_is_saved(stages: list[StageMemory]) -> None:
    for m in stages:
        assert peak_bytes([m], [1]) >= m.argument_bytes + m.kept_bytes + m.saved_bytes
        many = [peak_bytes([m], [k]) for k in range(20, 24)]
        assert [b - a for a, b in pairwise(many)] == [m.saved_bytes] * 3


def test_update_takes_no_more_for_more_micro_batches() -> None:
    memory = StageMemory(argument_bytes=10, kept_bytes=5, saved_bytes=2, loop_bytes=4, update_bytes=20)
    assert [peak_bytes([memory], [k]) for k in (0, 1, 2, 6, 7)] == [30, 30, 30, 30, 31]


def test_lives_of_a_whole_pipeline_weigh_what_is_saved_for_each_micro_batch() -> None:
    prepared = prepare(import_graph(parse_text(STEP, make_context())))
    graph, loop = prepared.graph, prepared.graph.microbatch_loop
    life = pipelined(prepared, 2, 3)
    assert life.others == 2
    inside = range(loop + 1, graph.ops[loop].region_end)
    saved = [v for v, weight in life.weights.items() if weight == 3]
    # %b, %h and %y: forward makes them, backward reads them.
    made = [graph.ops[graph.values[v].producer].name for v in saved]
    assert made == ["stablehlo.reshape", "stablehlo.dot_general", "stablehlo.dot_general"]
    assert all(graph.values[v].producer in inside and not prepared.backward[graph.values[v].producer] for v in saved)
    once = [v for v, weight in life.weights.items() if weight == 1]
    # The accumulators live through the loop.
    assert [graph.values[v].shape for v in once] == [(16, 16), (16, 16)]
    assert pipelined(prepared, 2, 0).weights == dict.fromkeys(life.weights, 1)
