"""Behaviours of XLA's kernels that reduce rows inside of themselves: what they take in, and what others are left."""

from __future__ import annotations

from rhino.xla.behaviour import Behaviour, Probe, program
from rhino.xla.collectives import GPUS, TARGETS
from rhino.xla.kernels import ONE, ZERO, L, R, kernels, reduced, sort

_STACK, _ONE_OF = "tensor<3x1024x1024xf32>", "tensor<1x1024x1024xf32>"


def _softmax(of: str) -> str:
    """%e, exponentials of a matrix over its largest in each row; %d, these over their sums; %t, those sums."""
    return (
        f"{ZERO}{reduced('m', of, 'maximum')}"
        f"%x = stablehlo.broadcast_in_dim %m, dims = [0] : ({R}) -> {L}\n"
        f"%y = stablehlo.subtract %{of}, %x : {L}\n%e = stablehlo.exponential %y : {L}\n{reduced('t', 'e')}"
        f"%u = stablehlo.broadcast_in_dim %t, dims = [0] : ({R}) -> {L}\n%d = stablehlo.divide %e, %u : {L}\n"
    )


ROWS = (
    Behaviour(
        "rows-reduced-inside",
        "What a row is reduced to, and what is made of that and of the row, is one kernel, which reads the row once: a "
        "softmax along the last dimension.",
        "SoftmaxRewriterTriton",
        probe=Probe(
            program(f"%a: {L} @[-, -] -> {L} @[-, -]", f"{_softmax('a')}return %d : {L}", ONE),
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
                f"{sort('s', 'a')}%b = stablehlo.transpose %s, dims = [1, 0] : ({L}) -> {L}\n"
                f"{_softmax('b')}{sort('r', 'd')}return %r : {L}",
                ONE,
            ),
            # Besides two sorts.
            lambda c: len(kernels(c)) == 6,
        ),
        where=("v100", "a100", "h100"),
    ),
    Behaviour(
        "rows-summed-with-another-apart",
        "Where a row is summed together with another, as in the gradient of a softmax that was kept, the sum is a "
        "kernel of its own, unless the same kernel has a reduction that goes back to what was summed.",
        "SoftmaxRewriterTriton",
        probe=Probe(
            program(
                f"%a: {L} @[-, -], %b: {L} @[-, -] -> {L} @[-, -]",
                f"""{ZERO}%0 = stablehlo.multiply %a, %b : {L}
                {reduced("1", "0")}%2 = stablehlo.broadcast_in_dim %1, dims = [0] : ({R}) -> {L}
                %3 = stablehlo.subtract %b, %2 : {L}
                return %3 : {L}""",
                ONE,
            ),
            lambda c: len(kernels(c)) == 2,
        ),
        where=GPUS,
    ),
    Behaviour(
        "rows-stacked-apart",
        "What is made of a row that a kernel reduces is copied into a stack by another kernel.",
        "SoftmaxRewriterTriton",
        probe=Probe(
            program(
                f"%a: {L} @[-, -], %i: tensor<i32> @[] -> {_STACK} @[-, -, -]",
                f"""%s = stablehlo.constant dense<1.0> : {_STACK}
                %k = stablehlo.constant dense<0> : tensor<i32>
                {_softmax("a")}%r = stablehlo.reshape %d : ({L}) -> {_ONE_OF}
                %w = stablehlo.dynamic_update_slice %s, %r, %i, %k, %k
                  : ({_STACK}, {_ONE_OF}, tensor<i32>, tensor<i32>, tensor<i32>) -> {_STACK}
                return %w : {_STACK}""",
                ONE,
            ),
            # Besides what fills the stack.
            lambda c: len(kernels(c)) == 3,
        ),
        where=("a100", "h100", "h200", "b200"),
    ),
    Behaviour(
        "rows-alone",
        "A kernel that reduces rows and makes something of them is none that makes anything else.",
        "SoftmaxRewriterTriton",
        probe=Probe(
            program(
                f"%a: {L} @[-, -], %b: {L} @[-, -] -> {L} @[-, -], {L} @[-, -]",
                f"""{_softmax("a")}%0 = stablehlo.tanh %a : {L}
                %1 = stablehlo.multiply %0, %b : {L}
                return %d, %1 : {L}, {L}""",
                ONE,
            ),
            lambda c: len(kernels(c)) == 2,
        ),
        where=("a100", "h100", "h200", "b200"),
    ),
)
