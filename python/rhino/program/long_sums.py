"""Reductions so long that XLA makes two kernels of each: of parts, and of what these come to. `XLA: long-sums-in-two`

Owns how long those are. Knows no mesh.
"""

from __future__ import annotations

from math import prod

from rhino.program.data import Graph, Op

# What one kernel reduces: so many rows of what is kept along the innermost dimension, or elements of that dimension.
_ROWS, _ELEMENTS = 4096, 16384


def is_long(graph: Graph, op: Op, parts: int = 1) -> bool:
    """Whether an operation is a reduction in two kernels, wherever it is divided into at most so many parts."""
    if op.name != "stablehlo.reduce" or op.rule is None:
        return False
    rule, shape = op.rule, graph.values[op.operands[0]].shape
    kept = {f for dim in rule.results[0] for f in dim}
    reduced = [n for n, dim in zip(shape, rule.operands[0], strict=True) if n > 1 and kept.isdisjoint(dim)]
    innermost = next((dim for n, dim in zip(reversed(shape), reversed(rule.operands[0]), strict=True) if n > 1), ())
    return prod(reduced) > parts * (_ELEMENTS if kept.isdisjoint(innermost) else _ROWS)
