"""Dimensions whose size the devices do not divide: where XLA may split them all the same, into parts that differ.

Owns which decisions of a problem may be so, and what such a split divides by. What a program takes and returns must
divide. `XLA: uneven-parts-padded`, and masked where they are summed. Knows no costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING

from rhino.program.data import Graph, Op
from rhino.program.fusible import is_elementwise
from rhino.program.operations import CONSTRAINTS, WINDOWED, stablehlo

if TYPE_CHECKING:
    from rhino.sharding.problem import Problem

# A value's dimensions that do not divide, and their sizes.
Odd = tuple[tuple[int, int], ...]

# Of what all devices hold, at most a quarter is padding.
_MOST = 4 / 3
# Ops with decisions of their own that XLA splits so and is right: `test/python/sharding/test_uneven.py`.
_OWN = CONSTRAINTS | WINDOWED | stablehlo("dot_general convolution gather sort")
_SCATTER = "stablehlo.scatter"
# Ops of a cone that move elements, and along other dimensions only.
_MOVING = stablehlo(
    "broadcast_in_dim transpose reshape reduce slice concatenate pad reverse dynamic_slice dynamic_update_slice "
    "optimization_barrier"
)


def pays(size: int, n: int) -> bool:
    """Whether padding a dimension to n equal parts adds little."""
    return -(-size // n) * n <= size * _MOST


def ways(size: int, n: int) -> float:
    """What splitting over n devices divides by: n, or less where the largest part has more than its share."""
    return n if size % n == 0 else size / -(-size // n)


def share(nbytes: int, parts: float) -> int:
    """Bytes of the largest of `parts` parts."""
    return nbytes // parts if isinstance(parts, int) else round(nbytes / parts)


def padded(odd: Odd, splits: Iterable[tuple[int, Sequence[int]]], sizes: Sequence[int]) -> float:
    """By how much padding enlarges a value whose dimensions are split by axes, as (dimension, axes)."""
    on = dict(splits)
    return prod(n / ways(size, n) for d, size in odd if (n := prod(sizes[a] for a in on.get(d, ()))) > 1)


def even_operands(graph: Graph, op: Op) -> Sequence[int]:
    """The positions of operands that XLA must not split into parts that differ: what it makes of them is wrong.

    `XLA: uneven-scatters-wrong`.
    """
    if is_right(graph, op):
        return ()
    return range(len(op.operands) // 2 if op.name == _SCATTER else 0, len(op.operands))


def is_right(graph: Graph, op: Op) -> bool:
    """Whether XLA is right where it splits values that an op reads or makes into parts that differ."""
    return op.kernel is None and (op.name in _OWN or op.name in _MOVING or is_elementwise(graph, op))


def _is_right_along(graph: Graph, op: Op, factor: int) -> bool:
    """Whether it is right where one factor is so: of a scatter, those that its indices do not have."""
    if op.name == _SCATTER and op.rule is not None:
        return all(factor not in dim for dim in op.rule.operands[len(op.operands) // 2])
    return is_right(graph, op)


def mark(problem: Problem) -> None:
    """Sets `Node.uneven` of every decision."""
    graph = problem.graph
    bad: set[tuple[int, int]] = {(n, c) for n, losses in problem.losses.items() for c, _, _ in losses}
    bounds = {*(a.value for a in graph.arguments), *graph.outputs}
    for value in graph.values:
        v = value.index
        n = problem.node_of[v]
        if n < 0:
            continue
        limits = problem.nodes[n].limits
        for c, size in zip(problem.classes[v], value.shape, strict=True):
            if c >= 0 and (v in bounds or limits[c] != size):
                bad.add((n, c))
    for node in problem.nodes:
        if node.kind == "op":
            op = graph.ops[node.ops[0]]
            node.uneven = tuple(_is_right_along(graph, op, f) and _alone(problem, op, f) for f in node.factors)
            continue
        for o in node.ops:
            op = graph.ops[o]
            if not is_right(graph, op):
                ends = [v for v in (*op.operands, *op.results) if problem.node_of[v] == node.index]
                bad.update((node.index, c) for v in ends for c in problem.classes[v])
        node.uneven = tuple((node.index, c) not in bad for c in range(len(node.limits)))


def _alone(problem: Problem, op: Op, factor: int) -> bool:
    """Whether a factor is all of every dimension it is in."""
    rule = op.rule
    if rule is None or factor in rule.entire:
        return False
    return all(
        dim == (factor,) and problem.graph.values[v].shape[d] == rule.factor_sizes[factor]
        for v, mapping in zip((*op.operands, *op.results), (*rule.operands, *rule.results), strict=True)
        for d, dim in enumerate(mapping)
        if factor in dim
    )
