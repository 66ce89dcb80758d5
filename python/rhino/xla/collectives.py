"""Behaviours of XLA's partitioner and of its passes over collectives: what is sent, how often, at once with what."""

from __future__ import annotations

import re

from rhino.xla.backends import BACK_ENDS
from rhino.xla.behaviour import Behaviour, Compiled, Probe, program, until

TARGETS = tuple(BACK_ENDS)
GPUS = tuple(t for t in TARGETS if t != "cpu")
M = "tensor<64x64xf32>"
BYTES = 64 * 64 * 4


def dot(name: str, a: str, b: str, kind: str = M) -> str:
    """The product of two square matrices."""
    return f"%{name} = stablehlo.dot_general %{a}, %{b}, contracting_dims = [1] x [0] : ({kind}, {kind}) -> {kind}\n"


def count(compiled: Compiled, kind: str) -> int:
    """How often a kind of collective runs."""
    return sum(c.count for c in compiled.collectives() if c.kind == kind)


def sent(compiled: Compiled) -> dict[str, int]:
    """Bytes that one device sends, by kind of collective."""
    found: dict[str, int] = {}
    for c in compiled.collectives():
        found[c.kind] = found.get(c.kind, 0) + c.bytes
    return found


def instructions(compiled: Compiled, kind: str) -> int:
    """How many instructions there are of a kind of collective, in whatever computation."""
    return len(re.findall(rf"\b{kind}(?:-start)?\(", compiled.hlo_text()))


def summing_loop(kept: str, narrow: bool = False, mesh: str = "x=8") -> str:
    """Four trips that each add a product whose contracted dimension is split; if narrow, it is converted from bf16."""
    split = "+".join(re.findall(r"(\w+)=", mesh))
    made = f"{dot('p', 'scaled', 'b')}\n%q = sdy.sharding_constraint %p @[{kept}] : {M}"
    if narrow:
        n = M.replace("f32", "bf16")
        made = f"""%l = stablehlo.convert %scaled : ({M}) -> {n}
          %m = stablehlo.convert %b : ({M}) -> {n}
          {dot("p", "l", "m", n)}
          %o = sdy.sharding_constraint %p @[{kept}] : {n}
          %q = stablehlo.convert %o : ({n}) -> {M}"""
    return program(
        f"%a: {M} @[-, {split}], %b: {M} @[{split}, -] -> {M} @[{kept}]",
        f"""
        %zero = stablehlo.constant dense<0.0> : {M}
        %start = sdy.sharding_constraint %zero @[{kept}] : {M}
        %none = stablehlo.constant dense<0> : tensor<i32>
        %r:2 = stablehlo.while(%i = %none, %sum = %start) : tensor<i32>, {M}
        {until(4)} do {{
          %one = stablehlo.constant dense<1> : tensor<i32>
          %f = stablehlo.convert %i : (tensor<i32>) -> tensor<f32>
          %s = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> {M}
          %scaled = stablehlo.add %a, %s : {M}
          {made}
          %next = stablehlo.add %sum, %q : {M}
          %j = stablehlo.add %i, %one : tensor<i32>
          stablehlo.return %j, %next : tensor<i32>, {M}
        }}
        return %r#1 : {M}""",
        mesh,
    )


def reduction(dims: str, body: str, results: str, mesh: str = "x=2 y=4") -> str:
    """Sums of the first two of four dimensions."""
    wide = "tensor<8x8x64x64xf32>"
    return program(
        f"%a: {wide} @[{dims}], %b: {wide} @[-, y, -, -] -> {results}",
        f"""
        %zero = stablehlo.constant dense<0.0> : tensor<f32>
        %0 = stablehlo.reduce(%a init: %zero) applies stablehlo.add across dimensions = [0, 1]
          : ({wide}, tensor<f32>) -> {M}
        {body}""",
        mesh,
    )


_TWO_SUMS = dot("0", "a", "b") + dot("1", "c", "d")
_FOUR = f"%a: {M} @[-, x], %b: {M} @[x, -], %c: {M} @[-, x], %d: {M} @[x, -]"
_BY_INNER = reduction("x, y, -, -", f"return %0 : {M}", f"{M} @[y, -]")
_OTHER = f"""%1 = stablehlo.reduce(%b init: %zero) applies stablehlo.add across dimensions = [0, 1]
          : (tensor<8x8x64x64xf32>, tensor<f32>) -> {M}
        return %0, %1 : {M}, {M}"""

COLLECTIVES = (
    Behaviour(
        "sums-merge",
        "Partial results that are added are added first, and reduced over devices once.",
        "AllReduceReassociate",
        probe=Probe(
            program(f"{_FOUR} -> {M} @[-, -]", f"{_TWO_SUMS}%2 = stablehlo.add %0, %1 : {M}\nreturn %2 : {M}"),
            lambda c: sent(c) == {"all-reduce": 2 * BYTES * 7 // 8},
        ),
        field="sums_merge",
        where=TARGETS,
    ),
    Behaviour(
        "whole-is-not-merged",
        "Of `(x + a) + b` with x whole, a and b are reduced apart.",
        "AllReduceReassociate",
        probe=Probe(
            program(
                f"%x: {M} @[-, -], {_FOUR} -> {M} @[-, -]",
                f"{_TWO_SUMS}%2 = stablehlo.add %x, %0 : {M}\n%3 = stablehlo.add %2, %1 : {M}\nreturn %3 : {M}",
            ),
            lambda c: sent(c) == {"all-reduce": 2 * 2 * BYTES * 7 // 8},
        ),
        where=GPUS,
    ),
    Behaviour(
        "sums-leave-loops",
        "What a loop adds up, reduced over devices in every trip, is reduced once behind the loop.",
        "WhileLoopAllReduceCodeMotion",
        probe=Probe(summing_loop("-, -"), lambda c: count(c, "all-reduce") == 1),
        field="sums_leave_loops",
        where=TARGETS,
    ),
    Behaviour(
        "converted-sums-leave-loops",
        "So is what a loop converts before it adds it, in the type that it is converted from.",
        "WhileLoopAllReduceCodeMotion",
        probe=Probe(
            summing_loop("-, -", narrow=True),
            lambda c: count(c, "all-reduce") == 1 and sent(c) == {"all-reduce": 2 * BYTES // 2 * 7 // 8},
        ),
        where=GPUS,
    ),
    Behaviour(
        "sliced-sums-stay-in-loops",
        "What a loop adds up and keeps in parts is reduced in every trip.",
        "WhileLoopAllReduceCodeMotion",
        probe=Probe(summing_loop("x, -"), lambda c: sum(c.count for c in c.collectives()) == 4),
        where=("cpu", *GPUS),
    ),
    Behaviour(
        "scattered-sums-leave-loops",
        "Of what a loop adds up and keeps in parts over some axes, the sum over the others is reduced once behind it.",
        "WhileLoopAllReduceCodeMotion",
        probe=Probe(
            summing_loop("x, -", mesh="x=2 y=4"),
            lambda c: {found.kind: found.count for found in c.collectives()} == {"reduce-scatter": 4, "all-reduce": 1},
        ),
        where=GPUS,
    ),
    Behaviour(
        "reduce-scatters",
        "What is summed over devices and kept in parts is reduced and scattered at once.",
        "ReduceScatterCreator",
        probe=Probe(
            program(f"%a: {M} @[-, x], %b: {M} @[x, -] -> {M} @[x, -]", dot("0", "a", "b") + f"return %0 : {M}"),
            lambda c: sent(c) == {"reduce-scatter": BYTES * 7 // 8},
        ),
        field="reduce_scatters",
        where=TARGETS,
    ),
    Behaviour(
        "dots-reduced-axis-by-axis",
        "A dot that is summed over two axes, and kept in parts over one, is scattered over that and reduced over the "
        "other.",
        "the partitioner's dot handler",
        probe=Probe(
            program(
                f"%a: {M} @[-, x+y], %b: {M} @[x+y, -] -> {M} @[y, -]",
                dot("0", "a", "b") + f"return %0 : {M}",
                "x=2 y=4",
            ),
            lambda c: sent(c) == {"reduce-scatter": BYTES * 3 // 4, "all-reduce": BYTES // 4},
        ),
        where=("h100",),
    ),
    Behaviour(
        "reductions-over-all-axes-at-once",
        "A reduction summed over two axes, and kept in parts over one, is reduced over both at once, then sliced. "
        "CPUs reduce over one after the other, which plans do not count.",
        "AllReduceFolder",
        probe=Probe(_BY_INNER, lambda c: sent(c) == {"all-reduce": 2 * BYTES * 7 // 8}),
        where=TARGETS,
        not_on=("cpu",),
    ),
    Behaviour(
        "all-reduce-split",
        "An all-reduce over all devices that is sliced over the inner ones is scattered over them and reduced over the "
        "others, where the computation reduces over such groups anyway.",
        "AllReduceSplitter",
        probe=Probe(
            reduction("x, y, -, -", _OTHER, f"{M} @[y, -], {M} @[-, -]"),
            lambda c: sent(c).get("reduce-scatter") == BYTES * 3 // 4,
        ),
        where=TARGETS,
        not_on=("cpu",),
    ),
    Behaviour(
        "dot-divided-further",
        "A dot whose result is wanted in parts computes these alone, and sums less, where its operands are whole.",
        "the partitioner's dot handler",
        probe=Probe(
            program(
                f"%a: {M} @[-, y], %b: {M} @[y, -] -> {M} @[x, -]", dot("0", "a", "b") + f"return %0 : {M}", "x=2 y=4"
            ),
            lambda c: sent(c) == {"all-reduce": 2 * BYTES // 2 * 3 // 4},
        ),
    ),
    Behaviour(
        "collectives-combined",
        "Independent all-reduces over the same groups become one, on GPUs up to a threshold.",
        "AllReduceCombiner",
        probe=Probe(
            program(f"{_FOUR} -> {M} @[-, -], {M} @[-, -]", f"{_TWO_SUMS}return %0, %1 : {M}, {M}"),
            lambda c: instructions(c, "all-reduce") == 1,
        ),
        where=TARGETS,
    ),
    Behaviour(
        "sums-joined",
        "All-reduces that become one have one operand, to which what they sum is copied, and from which each result is "
        "copied out.",
        "AllReduceContiguous",
        probe=Probe(
            program(f"{_FOUR} -> {M} @[-, -], {M} @[-, -]", f"{_TWO_SUMS}return %0, %1 : {M}, {M}"),
            lambda c: len(re.findall(r" = f32\[(?:8192|4096)\]\S* (?:concatenate|slice)\(", c.hlo_text())) == 3,
        ),
        field="sums_joined",
        where=TARGETS,
    ),
    Behaviour(
        "starts-shared",
        "The tensors of one collective start together. On CPUs each is sent by itself, one after the other, whatever "
        "collective it is in.",
        "AllReduceThunk, CollectiveThunk",
        field="starts_shared",
        unprobed="Only time tells: forty small sums take as long in one all-reduce as in forty.",
    ),
    Behaviour(
        "gathers-combined",
        "Independent all-gathers, and reduce-scatters, become one as well.",
        "AllGatherCombiner, ReduceScatterCombiner",
        probe=Probe(
            program(
                f"%a: {M} @[x, -], %b: {M} @[x, -] -> {M} @[-, -], {M} @[-, -]",
                f"""%0 = stablehlo.tanh %a : {M}
          %1 = stablehlo.tanh %b : {M}
          return %0, %1 : {M}, {M}""",
            ),
            lambda c: instructions(c, "all-gather") == 1,
        ),
        field="gathers_combined",
        where=TARGETS,
    ),
    Behaviour(
        "threshold-keeps-apart",
        "What is more than the combiner's threshold together stays apart.",
        "xla_gpu_all_reduce_combine_threshold_bytes",
        probe=Probe(
            program(f"{_FOUR} -> {M} @[-, -], {M} @[-, -]", f"{_TWO_SUMS}return %0, %1 : {M}, {M}"),
            lambda c: instructions(c, "all-reduce") == 2,
            {"xla_gpu_all_reduce_combine_threshold_bytes": BYTES},
        ),
        where=GPUS,
    ),
    Behaviour(
        "resharded-once",
        "A value that several read in one other layout is moved there once.",
        "the partitioner's cache of resharded values",
        probe=Probe(
            program(
                f"%a: {M} @[x, -], %b: {M} @[x, -], %w: {M} @[x, -] -> {M} @[x, -], {M} @[x, -]",
                f"""%v = sdy.sharding_constraint %w @[-, -] : {M}
                %u = sdy.sharding_constraint %w @[-, -] : {M}
                {dot("0", "a", "v")}{dot("1", "b", "u")}
                return %0, %1 : {M}, {M}""",
            ),
            lambda c: sent(c) == {"all-gather": BYTES * 7 // 8},
        ),
    ),
    Behaviour(
        "op-shardings-dropped",
        "The shardings of arguments, results and constraints are kept; what any other operation says is dropped.",
        "xla/service/spmd/shardy, the import of StableHLO",
        probe=Probe(
            program(
                f"%a: {M} @[-, -], %b: {M} @[-, -] -> {M} @[-, -]",
                dot("0", "a", "b").replace(
                    " : (", ' {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : ('
                )
                + f"return %0 : {M}",
            ),
            lambda c: not c.collectives(),
        ),
    ),
    Behaviour(
        "reshards-not-imported",
        "A module with a `sdy.reshard` is refused.",
        "xla/service/spmd/shardy, the import of StableHLO",
        probe=Probe(
            program(f"%a: {M} @[x, -] -> {M} @[-, -]", f"%0 = sdy.reshard %a @[-, -] : {M}\nreturn %0 : {M}"),
            refused="sdy",
        ),
    ),
    Behaviour(
        "halos-exchanged",
        "What moves a split dimension by less than a part sends the borders, and is not gathered.",
        "the partitioner's pad handler",
        probe=Probe(
            program(
                f"%a: {M} @[x, -] -> {M} @[x, -]",
                f"""%z = stablehlo.constant dense<0.0> : tensor<f32>
                %0 = stablehlo.pad %a, %z, low = [1, 0], high = [-1, 0], interior = [0, 0]
                  : ({M}, tensor<f32>) -> {M}
                return %0 : {M}""",
            ),
            lambda c: sent(c) == {"collective-permute": BYTES // 64},
        ),
    ),
    Behaviour(
        "variadic-parts-gathered",
        "Of a reduction of several tensors at once the parts are gathered, and reduced again by the same reducer.",
        "the partitioner's reduce handler",
        probe=Probe(
            program(
                "%a: tensor<64x8xf32> @[x, -], %i: tensor<64x8xi32> @[x, -] -> tensor<8xf32> @[-], tensor<8xi32> @[-]",
                """%low = stablehlo.constant dense<0xFF800000> : tensor<f32>
                %none = stablehlo.constant dense<0> : tensor<i32>
                %r:2 = stablehlo.reduce(%a init: %low), (%i init: %none) across dimensions = [0]
                  : (tensor<64x8xf32>, tensor<64x8xi32>, tensor<f32>, tensor<i32>) -> (tensor<8xf32>, tensor<8xi32>)
                  reducer(%p: tensor<f32>, %q: tensor<f32>) (%j: tensor<i32>, %k: tensor<i32>) {
                  %first = stablehlo.compare GE, %p, %q : (tensor<f32>, tensor<f32>) -> tensor<i1>
                  %s = stablehlo.select %first, %p, %q : tensor<i1>, tensor<f32>
                  %t = stablehlo.select %first, %j, %k : tensor<i1>, tensor<i32>
                  stablehlo.return %s, %t : tensor<f32>, tensor<i32>
                }
                return %r#0, %r#1 : tensor<8xf32>, tensor<8xi32>""",
            ),
            lambda c: count(c, "all-reduce") == 0 and sent(c) == {"all-gather": 2 * 8 * 4 * 7},
        ),
    ),
    Behaviour(
        "transforms-gathered",
        "A Fourier transform gathers its operand, though only the batch is split.",
        probe=Probe(
            program(
                "%a: tensor<64x8xcomplex<f32>> @[x, -] -> tensor<64x8xcomplex<f32>> @[x, -]",
                """%0 = stablehlo.fft %a, type = FFT, length = [8]
                  : (tensor<64x8xcomplex<f32>>) -> tensor<64x8xcomplex<f32>>
                return %0 : tensor<64x8xcomplex<f32>>""",
            ),
            lambda c: sent(c) == {"all-gather": 64 * 8 * 8 * 7 // 8},
        ),
        until="0.12.0.1",
    ),
    Behaviour(
        "uneven-parts-not-scattered",
        "A sum that is wanted in parts that differ is reduced whole, then sliced.",
        "ReduceScatterCreator",
        probe=Probe(
            program(
                "%a: tensor<30x64xf32> @[-, x], %b: tensor<64x64xf32> @[x, -] -> tensor<64xf32> @[-]",
                """%0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
                  : (tensor<30x64xf32>, tensor<64x64xf32>) -> tensor<30x64xf32>
                %1 = sdy.sharding_constraint %0 @[x, -] : tensor<30x64xf32>
                %2 = stablehlo.tanh %1 : tensor<30x64xf32>
                %3 = sdy.sharding_constraint %2 @[x, -] : tensor<30x64xf32>
                %z = stablehlo.constant dense<0.0> : tensor<f32>
                %4 = stablehlo.reduce(%3 init: %z) applies stablehlo.add across dimensions = [0]
                  : (tensor<30x64xf32>, tensor<f32>) -> tensor<64xf32>
                return %4 : tensor<64xf32>""",
            ),
            lambda c: sent(c) == {"all-reduce": 2 * (30 + 1) * 64 * 4 * 7 // 8},
        ),
    ),
    Behaviour(
        "uneven-parts-padded",
        "Parts that differ are padded to the largest, and gathered so.",
        "the partitioner's resharding",
        probe=Probe(
            program(
                "%a: tensor<30x64xf32> @[-, -] -> tensor<30x64xf32> @[-, -]",
                """%1 = sdy.sharding_constraint %a @[x, -] : tensor<30x64xf32>
                %2 = stablehlo.tanh %1 : tensor<30x64xf32>
                %3 = sdy.sharding_constraint %2 @[x, -] : tensor<30x64xf32>
                return %3 : tensor<30x64xf32>""",
            ),
            lambda c: sent(c) == {"all-gather": 32 * 64 * 4 * 7 // 8},
        ),
    ),
)
