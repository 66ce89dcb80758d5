"""Operands of which a product reads a part, where a device has all: the part is copied first. `XLA: slices-copied`.

Owns which conversions these are, and what they take. They count in loops, where each trip copies anew what may be a
weight that no trip changes; once in a step it is little. Chooses nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rhino.machine import Cluster
from rhino.machine.roofline import launch_s, memory_bytes_s
from rhino.program.fusible import is_made_apart
from rhino.program.operations import CONTRACTIONS
from rhino.sharding.layout import Layout, shards
from rhino.sharding.problem import LayoutTransfer, Problem
from rhino.sharding.sliced import is_slice
from rhino.sharding.symmetry import Quotient, of_most

if TYPE_CHECKING:
    from rhino.sharding.costs import Costs


def carving_seconds(problem: Problem, quotient: Quotient, cluster: Cluster) -> dict[int, tuple[float, float]]:
    """Per tied transfer to products in loops: seconds of a step for copies of the whole value, and for their launches.

    What a fusion makes is left out: where a part is read, it makes that part.
    """
    graph, bytes_s, start_s = problem.graph, memory_bytes_s(cluster), launch_s(cluster)

    def copied(transfer: LayoutTransfer) -> bool:
        return (
            transfer.trips > 1
            and is_made_apart(graph, transfer.value)
            and all(end.op >= 0 and graph.ops[end.op].name in CONTRACTIONS for end in transfer.targets)
        )

    found = {}
    for t in sorted(of_most(problem, quotient, "use", copied)):
        transfer = problem.transfers[t]
        nbytes = 2 * graph.values[transfer.value].nbytes
        found[t] = transfer.trips * nbytes / bytes_s, transfer.trips * start_s
    return found


def carved_seconds(costs: Costs, transfer: LayoutTransfer, start: Layout, end: Layout) -> float:
    """Seconds of a step for one conversion of a tied transfer, if it carves."""
    found = costs.carving.get(transfer.index)
    if found is None or not is_slice(start, end):
        return 0.0
    whole_s, starts_s = found
    return whole_s / shards(end, costs.sizes, costs.problem.graph.values[transfer.value].shape) + starts_s
