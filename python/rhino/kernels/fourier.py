"""Fourier transforms: `stablehlo.fft`. `XLA: transforms-gathered`, even where only the batch is split.

Owns which dimensions are transformed, and the count of arithmetic.
"""

from __future__ import annotations

from math import log2, prod

from rhino.kernels.data import Entry, KernelCall, Known, Refused
from rhino.kernels.rules import make_rule


def _fft(call: KernelCall) -> Known:
    (operand,), (result,) = call.operands, call.results
    length = [int(n) for n in call.config_of("fft_length")]
    rank = len(operand.shape) - len(length)
    if rank < 0 or operand.shape[:rank] != result.shape[:rank]:
        raise Refused(f"it transforms {len(length)} dimensions of {len(operand.shape)}")
    batch = [f"b{d}" for d in range(rank)]
    whole = [f"{side}{d}" for side in "xy" for d in range(len(length))]
    reads, makes = (" ".join((*batch, *whole[at : at + len(length)])) for at in (0, len(length)))
    rule, names = make_rule(f"{reads} -> {makes}", call.operands, call.results, whole=whole)
    # 5 n log2 n for n complex numbers (Van Loan, "Computational Frameworks for the FFT"), half of it for real ones.
    points = prod(length)
    real = operand.dtype != result.dtype
    flops = prod(operand.shape[:rank]) * round(5 * points * log2(max(1, points))) // (2 if real else 1)
    reason = "each element of the transform is a sum over all of them"
    return Known(rule, names, flops, call.nbytes, operand.dtype, "vector", dict.fromkeys(whole, reason))


ENTRIES = (
    Entry(
        "fft",
        ("stablehlo.fft",),
        "Fourier transforms of one to three dimensions. Splits the others.",
        _fft,
    ),
)
