"""The largest elements along a dimension: top-k, exact and approximate, as `jax.lax.top_k` and `approx_max_k` call it.

Owns which dimensions are independent. Sorts are operations of StableHLO, which Shardy and XLA split by themselves.
"""

from __future__ import annotations

from rhino.kernels.data import Entry, KernelCall, KernelTensor, Known, Refused
from rhino.kernels.rules import make_rule

_WHOLE = "the largest are chosen among all elements of this dimension"


def _along(call: KernelCall, along: int, values: int) -> Known:
    """A choice along one dimension of the first operands; the others, start values, have none."""
    first = call.operands[0]
    if not 0 <= along < len(first.shape):
        raise Refused(f"its dimension {along} is none of the {len(first.shape)} of its operand")

    def factors(tensor: KernelTensor, chosen: str) -> str:
        if len(tensor.shape) != len(first.shape):
            raise Refused(f"its operands and results have {len(first.shape)} and {len(tensor.shape)} dimensions")
        return " ".join(chosen if d == along else f"b{d}" for d in range(len(tensor.shape)))

    reads = [factors(tensor, "n") for tensor in call.operands[:values]]
    starts = [" ".join(f"s{i}_{d}" for d in range(len(t.shape))) for i, t in enumerate(call.operands[values:])]
    makes = [factors(tensor, "k") for tensor in call.results]
    rule, names = make_rule(
        f"{', '.join((*reads, *starts))} -> {', '.join(makes)}", call.operands, call.results, whole=("n", "k")
    )
    # One comparison of each element; those that are kept are few.
    return Known(rule, names, first.elements, call.nbytes, first.dtype, "vector", {"n": _WHOLE, "k": _WHOLE})


def _top_k(call: KernelCall) -> Known:
    return _along(call, len(call.operands[0].shape) - 1, len(call.operands))


def _approximate(call: KernelCall) -> Known:
    return _along(call, int(call.config_of("reduction_dim")), len(call.results))


ENTRIES = (
    Entry(
        "top-k",
        ("chlo.top_k", "mhlo.topk", "TopK", "__gpu$TopK"),
        "The largest elements of each row and their places. Splits all dimensions but the last.",
        _top_k,
    ),
    Entry(
        "approximate-top-k",
        ("ApproxTopK",),
        "The largest elements along a dimension, nearly. Splits the other dimensions.",
        _approximate,
        program="own-positions",
    ),
)
