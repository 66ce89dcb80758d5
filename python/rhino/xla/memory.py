"""Behaviours of XLA's fusion and buffer assignment: what is written to memory, where, and in which type."""

from __future__ import annotations

import re

from rhino.xla.behaviour import Behaviour, Compiled, Probe, program
from rhino.xla.collectives import GPUS, TARGETS, dot

L = "tensor<1024x1024xf32>"
H = "tensor<1024x1024xbf16>"
BYTES = 1024 * 1024 * 4
_LARGE = "tensor<2048x2048xf32>"
_ONE = "x=1"


def temp(compiled: Compiled) -> int:
    """Bytes that the program takes besides what it is given and returns."""
    return int(compiled.memory_analysis().temp_bytes)


def kernels(compiled: Compiled) -> list[str]:
    """The operations of the program's outermost computation that compute: fusions, dots, calls of libraries."""
    entry = compiled.hlo_text().partition("\nENTRY ")[2].partition("\n}")[0]
    found = re.findall(r"^\s+(?:ROOT )?%\S+ = (?:\([^)]*\)|\S+) ([a-z-]+)\(", entry, re.M)
    return [name for name in found if name not in ("parameter", "constant", "bitcast", "get-tuple-element", "tuple")]


def _sort(name: str, of: str) -> str:
    """What no fusion takes in."""
    return f"""%{name} = "stablehlo.sort"(%{of}) ({{
      ^bb0(%p: tensor<f32>, %q: tensor<f32>):
        %less = stablehlo.compare LT, %p, %q : (tensor<f32>, tensor<f32>) -> tensor<i1>
        stablehlo.return %less : tensor<i1>
      }}) {{dimension = 1 : i64, is_stable = true}} : ({L}) -> {L}\n"""


_ZERO = "%zero = stablehlo.constant dense<0.0> : tensor<f32>\n"
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
    return f"""{_ZERO}%z = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> {L}
      {_sort("b2", "b")}%y = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> {L}
      {_scatter("%z", "s")}%v = stablehlo.abs %u : tensor<64xf32>
      {_scatter(second, "r").replace("%u)", "%v)")}return %s, %r, %b2 : {L}, {L}, {L}"""


_STACK = "tensor<8x1024x1024xf32>"
_HUGE = "tensor<4096x4096xf32>"
_R = "tensor<1024xf32>"


def _reduced(name: str, of: str, kind: str = "add", dim: int = 1) -> str:
    """A vector: a matrix reduced over one of its dimensions, from what is called %zero."""
    return (
        f"%{name} = stablehlo.reduce(%{of} init: %zero) applies stablehlo.{kind} across dimensions = [{dim}]"
        f" : ({L}, tensor<f32>) -> {_R}\n"
    )


def _softmax(of: str) -> str:
    """%e, exponentials of a matrix over its largest in each row; %d, these over their sums; %t, those sums."""
    return (
        f"{_ZERO}{_reduced('m', of, 'maximum')}"
        f"%x = stablehlo.broadcast_in_dim %m, dims = [0] : ({_R}) -> {L}\n"
        f"%y = stablehlo.subtract %{of}, %x : {L}\n%e = stablehlo.exponential %y : {L}\n{_reduced('t', 'e')}"
        f"%u = stablehlo.broadcast_in_dim %t, dims = [0] : ({_R}) -> {L}\n%d = stablehlo.divide %e, %u : {L}\n"
    )


MEMORY = (
    Behaviour(
        "elementwise-fused",
        "A chain of element-wise operations is one kernel that writes its last result alone.",
        "InstructionFusion",
        probe=Probe(
            program(
                f"%a: {L} @[-, -], %b: {L} @[-, -] -> {L} @[-, -]",
                f"%0 = stablehlo.exponential %a : {L}\n%1 = stablehlo.add %0, %b : {L}\n"
                f"%2 = stablehlo.multiply %1, %a : {L}\nreturn %2 : {L}",
                _ONE,
            ),
            lambda c: len(kernels(c)) == 1,
        ),
    ),
    Behaviour(
        "elementwise-made-again",
        "What is element-wise is computed again by each kernel that reads it, and not kept in memory meanwhile. On "
        "CPUs it is kept, which plans do not count.",
        "PriorityFusion",
        probe=Probe(
            program(
                f"%a: {L} @[-, -], %b: {L} @[-, -] -> {L} @[-, -]",
                f"%0 = stablehlo.add %a, %b : {L}\n%1 = stablehlo.sine %0 : {L}\n{_sort('2', '1')}"
                f"%3 = stablehlo.multiply %2, %0 : {L}\nreturn %3 : {L}",
                _ONE,
            ),
            lambda c: len(re.findall(r"f32\[1024,1024\]\S* add\(", c.hlo_text())) == 2 and temp(c) < 2 * BYTES,
        ),
        where=TARGETS,
        not_on=("cpu",),
    ),
    Behaviour(
        "siblings-merged",
        "Element-wise results that share what is computed for them, and do not follow from each other, are written by "
        "one kernel, when all it reads is there; it writes over nothing that it reads. Plans count it where dots are "
        "widened: elsewhere XLA's own kernels for dots often compute such results themselves.",
        "PriorityFusion, MultiOutputFusion",
        probe=Probe(
            program(
                f"%a: {L} @[-, -], %b: {L} @[-, -] -> {L} @[-, -], {L} @[-, -]",
                f"{_sort('0', 'a')}{_sort('1', 'b')}%2 = stablehlo.exponential %0 : {L}\n"
                f"%3 = stablehlo.multiply %2, %b : {L}\n%4 = stablehlo.multiply %2, %1 : {L}\n"
                f"{_sort('5', '3')}{_sort('6', '4')}return %5, %6 : {L}, {L}",
                _ONE,
            ),
            # Besides four sorts.
            lambda c: len(kernels(c)) == 5,
        ),
        where=("v100", "a100", "h100"),
    ),
    Behaviour(
        "sums-merged",
        "A reduction is made by the kernel that makes what it sums, or by one that reads it, too.",
        "MultiOutputFusion",
        probe=Probe(
            program(
                f"%a: {L} @[-, -], %b: {L} @[-, -] -> {L} @[-, -], {_R} @[-]",
                f"{_ZERO}%0 = stablehlo.multiply %a, %b : {L}\n{_reduced('1', '0')}return %0, %1 : {L}, {_R}",
                _ONE,
            ),
            lambda c: len(kernels(c)) == 1,
        ),
        field="siblings_merged",
        where=TARGETS,
    ),
    Behaviour(
        "rows-reduced-inside",
        "What a row is reduced to, and what is made of that and of the row, is one kernel, which reads the row once: a "
        "softmax along the last dimension.",
        "SoftmaxRewriterTriton",
        probe=Probe(
            program(f"%a: {L} @[-, -] -> {L} @[-, -]", f"{_softmax('a')}return %d : {L}", _ONE),
            lambda c: len(kernels(c)) == 1,
        ),
        field="rows_fused",
        where=TARGETS,
    ),
    Behaviour(
        "rows-reduced-apart",
        "Where rows are transposed on their way, their reductions are kernels of their own, and each reads all of "
        "them.",
        "SoftmaxRewriterTriton",
        probe=Probe(
            program(
                f"%a: {L} @[-, -] -> {L} @[-, -]",
                f"{_sort('s', 'a')}%b = stablehlo.transpose %s, dims = [1, 0] : ({L}) -> {L}\n"
                f"{_softmax('b')}{_sort('r', 'd')}return %r : {L}",
                _ONE,
            ),
            # Besides two sorts.
            lambda c: len(kernels(c)) == 6,
        ),
        where=("v100", "a100", "h100"),
    ),
    Behaviour(
        "costly-made-once",
        "A tanh that several results are made of is written by a kernel of its own, if one of these is summed.",
        "PriorityFusion",
        probe=Probe(
            program(
                f"%a: {_HUGE} @[-, -], %b: {_HUGE} @[-, -] -> {_HUGE} @[-, -], {_HUGE} @[-, -], tensor<4096xf32> @[-]",
                f"""{_ZERO}%t = stablehlo.tanh %a : {_HUGE}
                %0 = stablehlo.multiply %t, %a : {_HUGE}
                %1 = stablehlo.multiply %t, %t : {_HUGE}
                %2 = stablehlo.multiply %1, %b : {_HUGE}
                %s = stablehlo.reduce(%2 init: %zero) applies stablehlo.add across dimensions = [0]
                  : ({_HUGE}, tensor<f32>) -> tensor<4096xf32>
                {dot("3", "0", "b", _HUGE)}{dot("4", "2", "b", _HUGE)}
                return %3, %4, %s : {_HUGE}, {_HUGE}, tensor<4096xf32>""",
                _ONE,
            ),
            # Two dots, and what both read.
            lambda c: len(kernels(c)) == 4,
        ),
        field="costly_kept",
        where=TARGETS,
    ),
    Behaviour(
        "fills-merged",
        "Tensors of one shape that are filled with constants are filled by one kernel, before the first is needed.",
        "MultiOutputFusion",
        probe=Probe(
            program(
                f"%a: {L} @[-, -], %b: {L} @[-, -], %at: tensor<64x2xi32> @[-, -], %u: tensor<64xf32> @[-]"
                f" -> {L} @[-, -], {L} @[-, -], {L} @[-, -]",
                _fills("%y"),
                _ONE,
            ),
            lambda c: re.search(r"= \(\S+ \S+\) fusion\(\)", c.hlo_text()) is not None,
        ),
        where=("v100", "h100"),
        until="0.12.0.1",
    ),
    Behaviour(
        "sliced-early",
        "A value that is read whole first, and in parts later, is sliced at once, and given up after it was read "
        "whole.",
        "ListMemoryScheduler",
        probe=Probe(
            program(
                f"%a: {L} @[-, -], %b: {L} @[-, -], %c: {L} @[-, -] -> {L} @[-, -], {L} @[x, -]",
                f"{dot('s', 'a', 'b', L)}%0 = sdy.sharding_constraint %s @[-, -] : {L}\n{_sort('m', '0')}"
                f"%1 = sdy.sharding_constraint %m @[-, -] : {L}\n{_sort('2', '1')}{_sort('3', '2')}"
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
        "A stack of which a loop gathers slices, not along their outermost dimension, is copied before the loop, with "
        "that dimension outermost.",
        "GpuLayoutAssignment",
        probe=Probe(
            program(
                f"%a: {L} @[-, -], %w: {_STACK} @[-, -, x] -> {L} @[-, -]",
                f"""{_NONE}%r:3 = stablehlo.while(%i = %none, %v = %a, %s = %w) : tensor<i32>, {L}, {_STACK}
                cond {{
                  %n = stablehlo.constant dense<8> : tensor<i32>
                  %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
                  stablehlo.return %more : tensor<i1>
                }} do {{
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
                _ONE,
            ),
            lambda c: len(kernels(c)) == 2,
        ),
        where=("cpu", "v100"),
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
                cond {{
                  %n = stablehlo.constant dense<40> : tensor<i32>
                  %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
                  stablehlo.return %more : tensor<i1>
                }} do {{
                  %one = stablehlo.constant dense<1> : tensor<i32>
                  %t = stablehlo.sine %sum : {L}
                  %next = stablehlo.add %t, %c : {L}
                  %j = stablehlo.add %i, %one : tensor<i32>
                  stablehlo.return %j, %next, %c : tensor<i32>, {L}, {L}
                }}
                return %r#1 : {L}""",
                _ONE,
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
                f"{_ZERO}%z = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> {L}\n"
                f"{_scatter('%z')}%p = stablehlo.multiply %a, %b : {L}\n"
                f"%1 = stablehlo.add %s, %p : {L}\nreturn %1 : {L}",
                _ONE,
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
                _ONE,
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
                _ONE,
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
            program(f"%a: {L} @[-, -] -> {L} @[-, -]", f"return %a : {L}", _ONE),
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
                _ONE,
            ),
            # A library takes a few MiB to work in.
            lambda c: temp(c) < 3 * BYTES,
        ),
        where=("cpu", "v100"),
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
                _ONE,
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
                f"%a: {H} @[-, -], %b: {H} @[-, -] -> {H} @[-, -]", dot("0", "a", "b", H) + f"return %0 : {H}", _ONE
            ),
            lambda c: temp(c) >= 3 * BYTES,
        ),
        field="dots_widened",
        where=GPUS,
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
                _ONE,
            ),
            refused="lgorithm",
        ),
        field="refuses_algorithms",
        where=TARGETS,
    ),
)
