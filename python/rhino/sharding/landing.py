"""Results that an op leaves less split than they are kept: written apart, where else they are part of something else.

Owns the scatters that are added into the sum that follows (`rhino.program.fusion.absorbed`, `XLA: scatters-absorbed`),
which both must lie alike for: of others XLA fills a tensor with zeros, scatters into that, and reads it again. Chooses
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rhino.machine import Cluster
from rhino.machine.roofline import memory_bytes_s
from rhino.program.data import Graph
from rhino.program.fusion import absorbed
from rhino.sharding.layout import Layout, shards
from rhino.sharding.problem import PARTIAL, LayoutTransfer

if TYPE_CHECKING:
    from rhino.sharding.costs import Costs, States


def apart_seconds(graph: Graph, cluster: Cluster) -> dict[int, float]:
    """For each scatter that works on a sum, by index: seconds of all executions to write it whole, and to read it."""
    bytes_s = memory_bytes_s(cluster)
    ops, values = graph.ops, graph.values
    return {o: 2 * values[ops[o].results[0]].nbytes * ops[o].trips / bytes_s for o in absorbed(graph)}


def landed_seconds(costs: Costs, k: int, value: int, made: Layout, kept: Layout) -> float:
    """What one member of class k pays for a result that it leaves in another layout than it is kept in."""
    if not lands_apart(costs, k, made, kept):
        return 0.0
    whole_s = costs.apart[costs.problem.nodes[costs.quotient.nodes[k]].ops[0]]
    return whole_s / shards(made, costs.sizes, costs.problem.graph.values[value].shape)


def lands_apart(costs: Costs, k: int, made: Layout, kept: Layout) -> bool:
    """Whether a result of class k is written apart: parts of a sum, which lie as they are made, are not."""
    node = costs.problem.nodes[costs.quotient.nodes[k]]
    return made != kept and PARTIAL not in made and node.kind == "op" and node.ops[0] in costs.apart


def landings(costs: Costs, transfer: LayoutTransfer, states: Sequence[States]) -> float:
    """Seconds of all results of a tied transfer that are written apart."""
    if not costs.apart or transfer.kind != "define":
        return 0.0
    (target,) = transfer.targets
    kept = costs.layout(target, states[target.node]) if target.node >= 0 else (-1,) * len(costs.sizes)
    return sum(
        landed_seconds(costs, s.node, transfer.value, costs.layout(s, states[s.node]), kept) for s in transfer.sources
    )
