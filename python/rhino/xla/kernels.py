"""Behaviours of XLA's fusion: which operations are one kernel, and what each kernel makes again."""

from __future__ import annotations

import re

from rhino.xla.behaviour import Behaviour, Compiled, Probe, program
from rhino.xla.collectives import GPUS, TARGETS, dot

L = "tensor<1024x1024xf32>"
BYTES = 1024 * 1024 * 4
ONE = "x=1"
ZERO = "%zero = stablehlo.constant dense<0.0> : tensor<f32>\n"
_H = "tensor<1024x1024xbf16>"
_HUGE = "tensor<4096x4096xf32>"
R = "tensor<1024xf32>"
_LONG = "tensor<4097x256xf32>"
_TALL, _FLAT, _CUBE = "tensor<4x256x128xf32>", "tensor<4x128x256xf32>", "tensor<4x256x256xf32>"
_ROWS = "tensor<4x256xf32>"


def _gelu(t: str) -> str:
    """A dense layer, GELU by tanh, and what multiplies its gradient."""
    dot = f"contracting_dims = [1] x [0] : ({t}, {t}) -> {t}"
    return program(
        f"%a: {t} @[-, -], %b: {t} @[-, -] -> {t} @[-, -], {t} @[-, -]",
        f"""%half = stablehlo.constant dense<0.5> : {t}
        %one = stablehlo.constant dense<1.0> : {t}
        %k = stablehlo.constant dense<0.044715> : {t}
        %y = stablehlo.dot_general %a, %b, {dot}
        %0 = stablehlo.multiply %y, %y : {t}
        %1 = stablehlo.multiply %0, %k : {t}
        %2 = stablehlo.add %1, %one : {t}
        %3 = stablehlo.multiply %2, %half : {t}
        %4 = stablehlo.multiply %3, %y : {t}
        %t = stablehlo.tanh %4 : {t}
        %5 = stablehlo.add %t, %one : {t}
        %6 = stablehlo.multiply %5, %half : {t}
        %7 = stablehlo.multiply %6, %y : {t}
        %made = stablehlo.dot_general %7, %b, {dot}
        %8 = stablehlo.multiply %t, %t : {t}
        %9 = stablehlo.subtract %one, %8 : {t}
        %10 = stablehlo.multiply %9, %3 : {t}
        %11 = stablehlo.multiply %10, %y : {t}
        %12 = stablehlo.add %11, %6 : {t}
        %13 = stablehlo.multiply %12, %made : {t}
        %back = stablehlo.dot_general %13, %b, {dot}
        return %made, %back : {t}, {t}""",
        ONE,
    )


def temp(compiled: Compiled) -> int:
    """Bytes that the program takes besides what it is given and returns."""
    return int(compiled.memory_analysis().temp_bytes)


def kernels(compiled: Compiled) -> list[str]:
    """The operations of the program's outermost computation that compute: fusions, dots, calls of libraries."""
    entry = compiled.hlo_text().partition("\nENTRY ")[2].partition("\n}")[0]
    found = re.findall(r"^\s+(?:ROOT )?%\S+ = (?:\([^)]*\)|\S+) ([a-z-]+)\(", entry, re.M)
    return [name for name in found if name not in ("parameter", "constant", "bitcast", "get-tuple-element", "tuple")]


def _multiplies(compiled: Compiled) -> bool:
    """Whether the program multiplies matrices."""
    return re.search(r" dot\(|custom_call_target=\"__cublas", compiled.hlo_text()) is not None


def sort(name: str, of: str, kind: str = L) -> str:
    """What no fusion takes in."""
    return f"""%{name} = "stablehlo.sort"(%{of}) ({{
      ^bb0(%p: tensor<f32>, %q: tensor<f32>):
        %less = stablehlo.compare LT, %p, %q : (tensor<f32>, tensor<f32>) -> tensor<i1>
        stablehlo.return %less : tensor<i1>
      }}) {{dimension = 1 : i64, is_stable = true}} : ({kind}) -> {kind}\n"""


def _read_in_turn(of: str, times: int, name: str) -> str:
    """Kernels that read a value one after the other; the last is %name with the number of times less one."""
    text = f"%r_{name} = stablehlo.sine %{of} : {_HUGE}\n{sort(f'{name}0', f'r_{name}', _HUGE)}"
    for k in range(1, times):
        text += f"%{name}_{k} = stablehlo.multiply %{name}{k - 1}, %{of} : {_HUGE}\n"
        text += sort(f"{name}{k}", f"{name}_{k}", _HUGE)
    return text


def _batched(name: str, a: str, b: str) -> str:
    """Four products at once."""
    return (
        f"%{name} = stablehlo.dot_general %{a}, %{b}, batching_dims = [0] x [0], contracting_dims = [2] x [1] : "
        f"({_TALL}, {_FLAT}) -> {_CUBE}\n"
    )


def _summed_product(name: str, a: str, b: str) -> str:
    """The rows of what is made of two results of products, summed."""
    return (
        f"%e_{name} = stablehlo.exponential %{a} : {_CUBE}\n%m_{name} = stablehlo.multiply %e_{name}, %{b} : {_CUBE}\n"
        f"%{name} = stablehlo.reduce(%m_{name} init: %zero) applies stablehlo.add across dimensions = [2] : "
        f"({_CUBE}, tensor<f32>) -> {_ROWS}\n"
    )


def _made(compiled: Compiled, kind: str) -> int:
    """How often the largest values are made by operations of a kind."""
    return len(re.findall(rf"f32\[4096,4096\]\S* {kind}\(", compiled.hlo_text()))


def reduced(name: str, of: str, kind: str = "add", dim: int = 1) -> str:
    """A vector: a matrix reduced over one of its dimensions, from what is called %zero."""
    return (
        f"%{name} = stablehlo.reduce(%{of} init: %zero) applies stablehlo.{kind} across dimensions = [{dim}]"
        f" : ({L}, tensor<f32>) -> {R}\n"
    )


KERNELS = (
    Behaviour(
        "elementwise-fused",
        "A chain of element-wise operations is one kernel that writes its last result alone.",
        "InstructionFusion",
        probe=Probe(
            program(
                f"%a: {L} @[-, -], %b: {L} @[-, -] -> {L} @[-, -]",
                f"%0 = stablehlo.exponential %a : {L}\n%1 = stablehlo.add %0, %b : {L}\n"
                f"%2 = stablehlo.multiply %1, %a : {L}\nreturn %2 : {L}",
                ONE,
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
                f"%0 = stablehlo.add %a, %b : {L}\n%1 = stablehlo.sine %0 : {L}\n{sort('2', '1')}"
                f"%3 = stablehlo.multiply %2, %0 : {L}\nreturn %3 : {L}",
                ONE,
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
                f"{sort('0', 'a')}{sort('1', 'b')}%2 = stablehlo.exponential %0 : {L}\n"
                f"%3 = stablehlo.multiply %2, %b : {L}\n%4 = stablehlo.multiply %2, %1 : {L}\n"
                f"{sort('5', '3')}{sort('6', '4')}return %5, %6 : {L}, {L}",
                ONE,
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
                f"%a: {L} @[-, -], %b: {L} @[-, -] -> {L} @[-, -], {R} @[-]",
                f"{ZERO}%0 = stablehlo.multiply %a, %b : {L}\n{reduced('1', '0')}return %0, %1 : {L}, {R}",
                ONE,
            ),
            lambda c: len(kernels(c)) == 1,
        ),
        field="siblings_merged",
        where=TARGETS,
    ),
    Behaviour(
        "long-sums-in-two",
        "A reduction of more than 4,096 rows, or of more than 16,384 elements that lie beside each other, is two "
        "kernels: of parts, and of what these come to.",
        "TreeReductionRewriter",
        probe=Probe(
            program(
                f"%a: {_LONG} @[-, -] -> tensor<256xf32> @[-]",
                f"""{ZERO}%0 = stablehlo.reduce(%a init: %zero) applies stablehlo.add across dimensions = [0]
                  : ({_LONG}, tensor<f32>) -> tensor<256xf32>
                return %0 : tensor<256xf32>""",
                ONE,
            ),
            lambda c: len(kernels(c)) == 2,
        ),
        field="sums_in_two",
        where=TARGETS,
    ),
    Behaviour(
        "costly-made-once",
        "A tanh that several results are made of is written by a kernel of its own, if one of these is summed.",
        "PriorityFusion",
        probe=Probe(
            program(
                f"%a: {_HUGE} @[-, -], %b: {_HUGE} @[-, -] -> {_HUGE} @[-, -], {_HUGE} @[-, -], tensor<4096xf32> @[-]",
                f"""{ZERO}%t = stablehlo.tanh %a : {_HUGE}
                %0 = stablehlo.multiply %t, %a : {_HUGE}
                %1 = stablehlo.multiply %t, %t : {_HUGE}
                %2 = stablehlo.multiply %1, %b : {_HUGE}
                %s = stablehlo.reduce(%2 init: %zero) applies stablehlo.add across dimensions = [0]
                  : ({_HUGE}, tensor<f32>) -> tensor<4096xf32>
                {dot("3", "0", "b", _HUGE)}{dot("4", "2", "b", _HUGE)}
                return %3, %4, %s : {_HUGE}, {_HUGE}, tensor<4096xf32>""",
                ONE,
            ),
            # Two dots, and what both read.
            lambda c: len(kernels(c)) == 4,
        ),
        field="costly_kept",
        where=TARGETS,
    ),
    Behaviour(
        "tanh-kept",
        "A tanh in bfloat16, and an erfc, is written by the kernel that makes it first, where what else is made of it "
        "follows from that by a product: GELU of the forward pass keeps it for the backward pass.",
        "PriorityFusion",
        probe=Probe(_gelu("tensor<2048x2048xbf16>"), lambda c: c.hlo_text().count(" tanh(") == 1),
        field="tanh_kept",
        where=TARGETS,
    ),
    Behaviour(
        "wide-tanh-kept",
        "A tanh in float32 is kept so where memory is fast for what computes; a B200 keeps GELU's, not the probe's.",
        "PriorityFusion",
        probe=Probe(_gelu("tensor<2048x2048xf32>"), lambda c: c.hlo_text().count(" tanh(") == 1),
        field="wide_tanh_kept",
        where=("cpu", "v100", "a100", "h100", "h200"),
    ),
    Behaviour(
        "orders-meet",
        "A reduction does not take in a transposition: where what it reads is made of two products whose dimensions "
        "lie in different orders, one is transposed and written before.",
        "LayoutAssignment, PriorityFusion",
        probe=Probe(
            # The same twice, with and without a transposition in between.
            program(
                f"%a: {_TALL} @[-, -, -], %b: {_FLAT} @[-, -, -], %c: {_FLAT} @[-, -, -] -> {_ROWS} @[-, -], "
                f"{_ROWS} @[-, -]",
                f"{ZERO}{_batched('p', 'a', 'b')}{_batched('d', 'a', 'c')}"
                f"%t = stablehlo.transpose %p, dims = [0, 2, 1] : ({_CUBE}) -> {_CUBE}\n"
                f"{_summed_product('s', 't', 'd')}{_summed_product('r', 'p', 'd')}return %s, %r : {_ROWS}, {_ROWS}",
                ONE,
            ),
            lambda c: len(re.findall(r" = f32\[4,256,256\]\S* fusion\(%[^,()]+\), kind=kInput", c.hlo_text())) == 1,
        ),
        where=TARGETS,
        not_on=("cpu",),
    ),
    Behaviour(
        "stacks-transposed",
        "What a loop writes row by row, in the order of a product there, and another loop reads in that of another "
        "product, is transposed between them, all at once: for a moment it is there twice.",
        "LayoutAssignment",
        unprobed="In small loops XLA transposes row by row. Scores of attention that a scan over layers keeps show it: "
        "test_a_scan_keeps_scores_in_one_order_and_reads_them_in_another.",
    ),
    Behaviour(
        "barriers-hold",
        "What reads its operands behind an optimization barrier is not merged with what does the same in front of it. "
        "On CPUs jaxlib 0.10 merges it, so that nothing is computed again there outside of loops.",
        "OptimizationBarrierExpander, HloCSE",
        probe=Probe(
            program(
                f"%a: {L} @[-, -], %b: {L} @[-, -] -> {L} @[-, -], {L} @[-, -]",
                f"""{dot("0", "a", "b", L)}%1 = stablehlo.tanh %0 : {L}\n{dot("2", "1", "b", L)}
                %h:3 = stablehlo.optimization_barrier %a, %b, %2 : {L}, {L}, {L}
                {dot("3", "h#0", "h#1", L)}{dot("4", "3", "h#2", L)}return %4, %2 : {L}, {L}""",
                ONE,
            ),
            lambda c: len(re.findall(r" dot\(|custom_call_target=\"__cublas", c.hlo_text())) == 4,
        ),
        where=GPUS,
    ),
    Behaviour(
        "outer-multiplied",
        "A product that adds nothing up is element-wise.",
        "AlgebraicSimplifier",
        probe=Probe(
            program(
                f"%a: {R} @[-], %b: {R} @[-] -> {L} @[-, -]",
                f"%0 = stablehlo.dot_general %a, %b, contracting_dims = [] x [] : ({R}, {R}) -> {L}\nreturn %0 : {L}",
                ONE,
            ),
            lambda c: len(kernels(c)) == 1 and "multiply" in c.hlo_text() and not _multiplies(c),
        ),
        where=("cpu", *GPUS),
    ),
    Behaviour(
        "maxima-fused-into-dots",
        "A dot of 16 bits takes the maximum with a constant of what it reads itself, and so does the next that reads "
        "it: none is written.",
        "GemmFusion",
        probe=Probe(
            program(
                f"%a: {_H} @[-, -], %w: {_H} @[-, -] -> {_H} @[-, -], {_H} @[-, -]",
                f"""%zero = stablehlo.constant dense<0.0> : {_H}
                {dot("p", "a", "w", _H)}%r = stablehlo.maximum %p, %zero : {_H}
                {dot("0", "r", "w", _H)}return %0, %p : {_H}, {_H}""",
                ONE,
            ),
            lambda c: re.search(r"(?sm)^%gemm_fusion\S* \((?:(?!^\}).)* maximum\(", c.hlo_text()) is not None,
        ),
        field="maxima_fused",
        where=TARGETS,
    ),
    Behaviour(
        "vectors-multiplied",
        "A product with a vector is element-wise, and a sum, unless it is so large that memory bounds it in any case.",
        "AlgebraicSimplifier",
        probe=Probe(
            program(
                f"%a: {_CUBE} @[-, -, -], %b: {_ROWS} @[-, -] -> {_ROWS} @[-, -]",
                f"""%0 = stablehlo.dot_general %a, %b, batching_dims = [0] x [0], contracting_dims = [2] x [1]
                  : ({_CUBE}, {_ROWS}) -> {_ROWS}
                return %0 : {_ROWS}""",
                ONE,
            ),
            lambda c: len(kernels(c)) == 1 and not _multiplies(c),
        ),
        field="vectors_multiplied",
        where=TARGETS,
    ),
    Behaviour(
        "shared-made-once",
        "What is element-wise is written by a kernel of its own, if three or more kernels would move more bytes to "
        "make it again each.",
        "PriorityFusion",
        probe=Probe(
            # Three read a sum of three matrices, four one of two; three kernels make a sum of two again each.
            program(
                f"%a: {_HUGE} @[-, -], %b: {_HUGE} @[-, -], %c: {_HUGE} @[-, -] -> {_HUGE} @[-, -], {_HUGE} @[-, -], "
                f"{_HUGE} @[-, -]",
                f"%0 = stablehlo.add %a, %b : {_HUGE}\n%1 = stablehlo.add %0, %c : {_HUGE}\n"
                f"{_read_in_turn('1', 3, 'x')}"
                f"%2 = stablehlo.subtract %b, %c : {_HUGE}\n{_read_in_turn('2', 4, 'y')}"
                f"%3 = stablehlo.maximum %a, %c : {_HUGE}\n{_read_in_turn('3', 3, 'z')}"
                f"return %x2, %y3, %z2 : {_HUGE}, {_HUGE}, {_HUGE}",
                ONE,
            ),
            lambda c: [_made(c, kind) for kind in ("add", "subtract", "maximum")] == [2, 1, 3],
        ),
        field="shared_kept",
        where=TARGETS,
    ),
)
