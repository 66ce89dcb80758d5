"""Behaviours of XLA's buffer assignment: what is written to memory, where, and in which type."""

from __future__ import annotations

import re

from rhino.xla.behaviour import Behaviour, Probe, program, until
from rhino.xla.collectives import GPUS, TARGETS, dot
from rhino.xla.kernels import BYTES, ONE, ZERO, L, kernels, sort, temp

H = "tensor<1024x1024xbf16>"
_LARGE = "tensor<2048x2048xf32>"


_UPDATE = f"""%0 = stablehlo.dynamic_update_slice %a, %row, %at, %none
    : ({L}, tensor<1x1024xf32>, tensor<i32>, tensor<i32>) -> {L}
    return %0 : {L}"""
_NONE = "%none = stablehlo.constant dense<0> : tensor<i32>\n"


def _scatter(into: str, name: str = "s") -> str:
    return f"""%{name} = "stablehlo.scatter"({into}, %at, %u) ({{
        ^bb0(%old: tensor<f32>, %new: tensor<f32>):
          %t = stablehlo.add %old, %new : tensor<f32>
          stablehlo.return %t : tensor<f32>
      }}) {{scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0, 1],
            scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>}}
          : ({L}, tensor<64x2xi32>, tensor<64xf32>) -> {L}\n"""


def _fills(second: str) -> str:
    """Two scatters, into zeros and into what is given."""
    return f"""{ZERO}%z = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> {L}
      {sort("b2", "b")}%y = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> {L}
      {_scatter("%z", "s")}%v = stablehlo.abs %u : tensor<64xf32>
      {_scatter(second, "r").replace("%u)", "%v)")}return %s, %r, %b2 : {L}, {L}, {L}"""


def _placed(result: str, value: str, kind: str) -> str:
    """A value in another memory."""
    return f"""%{result} = stablehlo.custom_call @annotate_device_placement(%{value}) {{has_side_effect = true,
        mhlo.frontend_attributes = {{_xla_buffer_placement = "{kind}"}}}} : ({_LARGE}) -> {_LARGE}\n"""


_STACK = "tensor<8x1024x1024xf32>"


MEMORY = (
    Behaviour(
        "fills-merged",
        "Tensors of one shape that are filled with constants are filled by one kernel, before the first is needed.",
        "MultiOutputFusion",
        probe=Probe(
            program(
                f"%a: {L} @[-, -], %b: {L} @[-, -], %at: tensor<64x2xi32> @[-, -], %u: tensor<64xf32> @[-]"
                f" -> {L} @[-, -], {L} @[-, -], {L} @[-, -]",
                _fills("%y"),
                ONE,
            ),
            lambda c: re.search(r"= \(\S+ \S+\) fusion\(\)", c.hlo_text()) is not None,
        ),
        where=("v100", "h100"),
        until="0.12.0.1",
    ),
    Behaviour(
        "fills-read",
        "What is filled with a constant is read from memory by what follows from an update of something that started "
        "as the same: each has a fill of its own.",
        "PriorityFusion, CopyInsertion",
        probe=Probe(
            program(
                f"%a: {L} @[-, -], %at: tensor<64x2xi32> @[-, -], %u: tensor<64xf32> @[-] -> {L} @[-, -]",
                f"""{ZERO}%z = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> {L}
                {_scatter("%z")}%y = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> {L}
                %0 = stablehlo.maximum %s, %y : {L}
                %1 = stablehlo.multiply %0, %a : {L}
                return %1 : {L}""",
                ONE,
            ),
            # Two fills, of one kernel or of one each, of which the last kernel reads one.
            lambda c: re.search(r"= \(\S+ \S+\) fusion\(\)| fusion\(\)(?s:.*) fusion\(\)", c.hlo_text()) is not None,
        ),
        field="fills_read",
        where=TARGETS,
    ),
    Behaviour(
        "sliced-early",
        "A value that is read whole first, and in parts later, is sliced at once, and given up after it was read "
        "whole.",
        "ListMemoryScheduler",
        probe=Probe(
            program(
                f"%a: {L} @[-, -], %b: {L} @[-, -], %c: {L} @[-, -] -> {L} @[-, -], {L} @[x, -]",
                f"{dot('s', 'a', 'b', L)}%0 = sdy.sharding_constraint %s @[-, -] : {L}\n{sort('m', '0')}"
                f"%1 = sdy.sharding_constraint %m @[-, -] : {L}\n{sort('2', '1')}{sort('3', '2')}"
                f"%4 = sdy.sharding_constraint %3 @[-, -] : {L}\n%5 = sdy.sharding_constraint %0 @[x, -] : {L}\n"
                f"{dot('6', '5', 'c', L)}return %4, %6 : {L}, {L}",
            ),
            # The parts, then what sorts, which orders indices as well.
            lambda c: (
                re.search(r"dynamic_slice_fusion = (?s:.*), s32\[1024,1024\](?s:.*), s32\[1024,1024\]", c.hlo_text())
                is not None
            ),
        ),
        where=("v100", "h100"),
    ),
    Behaviour(
        "stacks-laid-out-anew",
        "A stack of which a loop gathers slices, or what it makes of them element by element, not along their "
        "outermost dimension, is copied before the loop, with that dimension outermost.",
        "GpuLayoutAssignment",
        probe=Probe(
            program(
                f"%a: {L} @[-, -], %w: {_STACK} @[-, -, x] -> {L} @[-, -]",
                f"""{_NONE}%r:3 = stablehlo.while(%i = %none, %v = %a, %s = %w) : tensor<i32>, {L}, {_STACK}
                {until(8)} do {{
                  %one = stablehlo.constant dense<1> : tensor<i32>
                  %zero = stablehlo.constant dense<0> : tensor<i32>
                  %c = stablehlo.dynamic_slice %s, %i, %zero, %zero, sizes = [1, 1024, 1024]
                    : ({_STACK}, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x1024x1024xf32>
                  %l = stablehlo.reshape %c : (tensor<1x1024x1024xf32>) -> {L}
                  %g = sdy.sharding_constraint %l @[-, -] : {L}
                  %t = stablehlo.dot_general %v, %g, contracting_dims = [1] x [0] : ({L}, {L}) -> {L}
                  %j = stablehlo.add %i, %one : tensor<i32>
                  stablehlo.return %j, %t, %s : tensor<i32>, {L}, {_STACK}
                }}
                return %r#1 : {L}""",
            ),
            lambda c: re.search(r"f32\[128,8,1024\]\S* (?:transpose|copy)\(", c.hlo_text()) is not None,
        ),
        where=("v100", "h100"),
    ),
    Behaviour(
        "kernels-turned",
        "A convolution's kernel is kept with its output features outermost, besides the order of the program: turned "
        "once for all that read it, and layers in front of their loop.",
        "GpuLayoutAssignment, ConvRewriter",
        probe=Probe(
            program(
                "%a: tensor<8x14x14x64xf32> @[-, -, -, -], %k: tensor<3x3x64x128xf32> @[-, -, -, -] "
                "-> tensor<8x14x14x128xf32> @[-, -, -, -]",
                """%0 = stablehlo.convolution(%a, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
                  window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
                  : (tensor<8x14x14x64xf32>, tensor<3x3x64x128xf32>) -> tensor<8x14x14x128xf32>
                return %0 : tensor<8x14x14x128xf32>""",
            ),
            lambda c: re.search(r"transpose\S* = f32\[128,", c.hlo_text()) is not None,
        ),
        field="kernels_turned",
        where=TARGETS,
    ),
    Behaviour(
        "gathered-apart",
        "A gather along the outermost dimension works in the buffer of a donated argument; along any other it has one "
        "of its own, with that dimension outermost.",
        "GpuLayoutAssignment",
        probe=Probe(
            program(
                f"%a: {L} @[-, -]!, %b: {L} @[-, x] -> {L} @[-, -]",
                f"%0 = sdy.sharding_constraint %a @[-, x] : {L}\n%1 = stablehlo.add %0, %b : {L}\n"
                f"%2 = sdy.sharding_constraint %1 @[-, x] : {L}\nreturn %2 : {L}",
            ),
            lambda c: temp(c) > BYTES,
        ),
        where=("v100", "h100"),
    ),
    Behaviour(
        "dots-read-memory",
        "What a dot reads is written to memory first, however it is made. From Ampere on XLA has kernels of its own "
        "for dots, into which it fuses what is element-wise. Plans do not count on them: timing chooses.",
        "InstructionFusion, GemmFusion",
        probe=Probe(
            program(
                f"%a: {L} @[-, -], %b: {L} @[-, -] -> {L} @[-, -]",
                f"%0 = stablehlo.tanh %a : {L}\n{dot('1', '0', 'b', L)}return %1 : {L}",
                ONE,
            ),
            lambda c: len(kernels(c)) == 2,
        ),
        where=("cpu", "v100"),
    ),
    Behaviour(
        "slices-copied",
        "Where a device has all of a matrix and a dot reads a part of it, the part is copied first.",
        "InstructionFusion, GemmFusion",
        probe=Probe(
            program(
                f"%a: {L} @[-, -], %b: {L} @[-, -] -> {L} @[-, x]",
                f"%0 = sdy.sharding_constraint %b @[-, x] : {L}\n{dot('1', 'a', '0', L)}return %1 : {L}",
            ),
            lambda c: re.search(r"%\S*slice\S*fusion\S* = ", c.hlo_text()) is not None,
        ),
        where=TARGETS,
    ),
    Behaviour(
        "constants-sink-into-loops",
        "A constant that a loop only carries is made in its body, where it is fused.",
        "WhileLoopConstantSinking",
        probe=Probe(
            program(
                f"%a: {L} @[-, -] -> {L} @[-, -]",
                f"""{_NONE}%f = stablehlo.constant dense<1.5> : {L}
                %r:3 = stablehlo.while(%i = %none, %sum = %a, %c = %f) : tensor<i32>, {L}, {L}
                {until(40)} do {{
                  %one = stablehlo.constant dense<1> : tensor<i32>
                  %t = stablehlo.sine %sum : {L}
                  %next = stablehlo.add %t, %c : {L}
                  %j = stablehlo.add %i, %one : tensor<i32>
                  stablehlo.return %j, %next, %c : tensor<i32>, {L}, {L}
                }}
                return %r#1 : {L}""",
                ONE,
            ),
            lambda c: temp(c) < BYTES,
        ),
    ),
    Behaviour(
        "scatters-absorbed",
        "A scatter that adds to zeros, and is added to something, works on that in place.",
        "AlgebraicSimplifier",
        probe=Probe(
            program(
                f"%a: {L} @[-, -], %b: {L} @[-, -], %at: tensor<64x2xi32> @[-, -], %u: tensor<64xf32> @[-]"
                f" -> {L} @[-, -]",
                f"{ZERO}%z = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> {L}\n"
                f"{_scatter('%z')}%p = stablehlo.multiply %a, %b : {L}\n"
                f"%1 = stablehlo.add %s, %p : {L}\nreturn %1 : {L}",
                ONE,
            ),
            lambda c: not re.search(r"f32\[1024,1024\]\S* broadcast\(", c.hlo_text()),
        ),
    ),
    Behaviour(
        "updates-in-place",
        "An update of a slice works in the buffer of a donated argument.",
        "HloDataflowAnalysis, CopyInsertion",
        probe=Probe(
            program(
                f"%a: {L} @[-, -]!, %row: tensor<1x1024xf32> @[-, -], %at: tensor<i32> @[] -> {L} @[-, -]",
                _NONE + _UPDATE,
                ONE,
            ),
            lambda c: temp(c) < 16384 and c.memory_analysis().alias_bytes == BYTES,
        ),
    ),
    Behaviour(
        "updates-copy-what-is-kept",
        "An update of an argument that the caller keeps works on a copy.",
        "CopyInsertion",
        probe=Probe(
            program(
                f"%a: {L} @[-, -], %row: tensor<1x1024xf32> @[-, -], %at: tensor<i32> @[] -> {L} @[-, -]",
                _NONE + _UPDATE,
                ONE,
            ),
            lambda c: (
                c.memory_analysis().alias_bytes == 0
                and re.search(r"f32\[1024,1024\]\S* copy\(", c.hlo_text()) is not None
            ),
        ),
    ),
    Behaviour(
        "handed-through-copied",
        "An argument that is returned as it is, and not donated, is copied.",
        "CopyInsertion",
        probe=Probe(
            program(f"%a: {L} @[-, -] -> {L} @[-, -]", f"return %a : {L}", ONE),
            lambda c: c.memory_analysis().output_bytes == BYTES and "copy(" in c.hlo_text(),
        ),
    ),
    Behaviour(
        "fusions-overwrite",
        "An element-wise kernel writes its result over what it is the last to read.",
        "BufferAssignment",
        probe=Probe(
            program(
                f"%a: tensor<2048x8xf32> @[-, -], %b: tensor<8x2048xf32> @[-, -] -> {_LARGE} @[-, -]",
                f"""%0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
                  : (tensor<2048x8xf32>, tensor<8x2048xf32>) -> {_LARGE}
                %1 = stablehlo.sine %0 : {_LARGE}
                return %1 : {_LARGE}""",
                ONE,
            ),
            # A library takes a few MiB to work in.
            lambda c: temp(c) < 3 * BYTES,
        ),
        where=("cpu", "v100"),
    ),
    Behaviour(
        "brought-not-overwritten",
        "An element-wise kernel does not write over what came from the memory of the host.",
        "BufferAssignment",
        probe=Probe(
            program(
                f"%a: {_LARGE} @[-, -]! -> {_LARGE} @[-, -]",
                f"""{_placed("0", "a", "device")}
                %1 = stablehlo.sine %0 : {_LARGE}
                {_placed("2", "1", "pinned_host")}
                return %2 : {_LARGE}""",
                ONE,
            ).replace("{sdy", '{mhlo.memory_kind = "pinned_host", sdy'),
            lambda c: temp(c) >= 2 * BYTES,
        ),
        where=("h100",),
    ),
    Behaviour(
        "wire-widened",
        "Floats of two bytes are sent as float32.",
        "FloatNormalization",
        probe=Probe(
            program(
                f"%a: {H} @[x, -], %b: {H} @[-, x] -> {H} @[-, -], tensor<1024xbf16> @[-]",
                f"""%0 = sdy.sharding_constraint %a @[-, -] : {H}
                %1 = stablehlo.abs %0 : {H}
                %zero = stablehlo.constant dense<0.0> : tensor<bf16>
                %2 = stablehlo.reduce(%b init: %zero) applies stablehlo.add across dimensions = [1]
                  : ({H}, tensor<bf16>) -> tensor<1024xbf16>
                return %1, %2 : {H}, tensor<1024xbf16>""",
            ),
            lambda c: {r.dtype for r in c.collectives()} == {"f32"},
        ),
        field="wire_widened",
        where=TARGETS,
    ),
    Behaviour(
        "elements-widened",
        "Element-wise operations on bfloat16 work in float32. CPUs do so, too, where plans do not count it.",
        "FloatNormalization",
        probe=Probe(
            program(
                f"%a: {H} @[-, -], %b: {H} @[-, -] -> {H} @[-, -]",
                f"%0 = stablehlo.add %a, %b : {H}\n%1 = stablehlo.multiply %0, %b : {H}\nreturn %1 : {H}",
                ONE,
            ),
            lambda c: not re.search(r"bf16\[\S* (?:add|multiply)\(", c.hlo_text()),
        ),
        field="elements_widened",
        where=GPUS,
    ),
    Behaviour(
        "dots-widened",
        "A dot of bfloat16 works on float32 copies of what it reads and makes. CPUs do so, too, where plans do not "
        "count them.",
        "FloatNormalization",
        probe=Probe(
            program(
                f"%a: {H} @[-, -], %b: {H} @[-, -] -> {H} @[-, -]", dot("0", "a", "b", H) + f"return %0 : {H}", ONE
            ),
            lambda c: temp(c) >= 3 * BYTES,
        ),
        field="dots_widened",
        where=GPUS,
    ),
    Behaviour(
        "roundings-undone",
        "A dot of bfloat16 that works on float32 copies reads what was converted from float32 as it was before.",
        "AlgebraicSimplifier, with xla_allow_excess_precision",
        probe=Probe(
            program(
                f"%a: {H} @[-, -], %w: {L} @[-, -] -> {H} @[-, -]",
                f"%c = stablehlo.convert %w : ({L}) -> {H}\n{dot('0', 'a', 'c', H)}return %0 : {H}",
                ONE,
            ),
            lambda c: re.search(r"custom-call\(%\w+, %Arg_1", c.hlo_text()) is not None,
        ),
        where=("v100", "h100"),
        not_on=("h100",),
    ),
    Behaviour(
        "dot-algorithms-refused",
        "A dot that says its algorithm, bfloat16 with float32 sums, is refused.",
        probe=Probe(
            program(
                f"%a: {H} @[-, -], %b: {H} @[-, -] -> {L} @[-, -]",
                f"""%0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0], algorithm = <
                  lhs_precision_type = bf16, rhs_precision_type = bf16, accumulation_type = f32,
                  lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 1,
                  allow_imprecise_accumulation = false> : ({H}, {H}) -> {L}
                return %0 : {L}""",
                ONE,
            ),
            refused="lgorithm",
        ),
        field="refuses_algorithms",
        where=TARGETS,
    ),
)
