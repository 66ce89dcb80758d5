"""Weights that are gathered, and gradients that are scattered, along a dimension that no product can have outermost.

A network sends blocks that lie together, so that dimension lies outermost (`XLA: scattered-outermost`). A product takes
that as it is where what it adds up, and what it leaves, still lie together; else the tensor is turned around in memory.
`XLA: gathered-turned`. Owns which conversions these are, and what they take. Chooses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from rhino.machine import Cluster
from rhino.machine.roofline import launch_s, memory_bytes_s
from rhino.program.data import Op
from rhino.sharding.layout import Layout, shards
from rhino.sharding.problem import PARTIAL, REPLICATED, LayoutTransfer, Problem
from rhino.sharding.symmetry import Quotient
from rhino.xla import back_end

if TYPE_CHECKING:
    from rhino.sharding.costs import Costs

# The dimensions along which it is turned, and seconds of a step for the whole value, and for starting.
Turning: TypeAlias = tuple[frozenset[int], float, float]


def turning(problem: Problem, quotient: Quotient, stored: AbstractSet[int], cluster: Cluster) -> dict[int, Turning]:
    """Per tied transfer of parameters and gradients, `stored`, to or from products, where some dimension is like that.

    Of activations a device has few examples: their dimensions often lie together whichever is in front.
    """
    if not back_end(cluster.device.xla_target).gathers_turned:
        return {}
    graph, bytes_s, start_s = problem.graph, memory_bytes_s(cluster), launch_s(cluster)
    found: dict[int, Turning] = {}
    for tied, _ in quotient.transfers:
        if tied.kind == "return" or tied.index not in stored:
            continue
        transfer = problem.transfers[tied.index]
        ends = transfer.targets if transfer.kind == "use" else transfer.sources
        shape = graph.values[transfer.value].shape
        dims: set[int] = set()
        for end in ends:
            if end.op >= 0:
                slot = end.slot if transfer.kind == "use" else None
                dims.update(turned_dims(graph.ops[end.op], slot, shape))
        if dims:
            nbytes = 2 * graph.values[transfer.value].nbytes
            found[transfer.index] = frozenset(dims), transfer.trips * nbytes / bytes_s, transfer.trips * start_s
    return found


def turned_dims(op: Op, slot: int | None, shape: Sequence[int]) -> list[int]:
    """Of a dot's operand, or of its result for None, the dimensions that cannot lie outermost; none of other ops.

    With one of them in front, those that are added up, or those of either side, are no longer beside each other and in
    order. Products of batches are left out.
    """
    if op.name != "stablehlo.dot_general" or op.rule is None or len(shape) < 3:
        return []
    left, right, result = ({f for dim in m for f in dim} for m in (*op.rule.operands, op.rule.results[0]))
    mapping = op.rule.results[0] if slot is None else op.rule.operands[slot]
    places = [d for d, size in enumerate(shape) if size > 1]
    # Of each dimension, where it is; of a batch's, everywhere.
    groups = [tuple(not side.isdisjoint(mapping[d]) for side in (left, right, result)) for d in places]
    if (True, True, True) in groups:
        return []
    found = []
    for at, d in enumerate(places):
        moved = [groups[at], *groups[:at], *groups[at + 1 :]]
        runs = 1 + sum(a != b for a, b in pairwise(moved))
        if groups.index(groups[at]) != at or runs > len(set(groups)):
            found.append(d)
    return found


def turned_seconds(costs: Costs, transfer: LayoutTransfer, start: Layout, end: Layout) -> float:
    """Seconds of a step for one conversion of a tied transfer, if something is turned around for it."""
    found = costs.turning.get(transfer.index)
    if found is None:
        return 0.0
    dims, whole_s, starts_s = found
    if transfer.kind == "use":
        moved, whole = {s for s, e in zip(start, end, strict=True) if s >= 0 and e == REPLICATED}, end
    else:
        moved, whole = {e for s, e in zip(start, end, strict=True) if s == PARTIAL and e >= 0}, start
    if dims.isdisjoint(moved):
        return 0.0
    return whole_s / shards(whole, costs.sizes, costs.problem.graph.values[transfer.value].shape) + starts_s
