"""Why nothing fits: the tensors that take the room, and what would be enough.

Owns the one error a user sees when a memory limit cannot be met.
"""

from __future__ import annotations

from rhino.errors import NothingFits
from rhino.machine import Cluster
from rhino.machine.units import nbytes
from rhino.program.data import Graph
from rhino.program.memory import lifetimes
from rhino.sharding.costs import Costs
from rhino.sharding.cuts import AIM
from rhino.sharding.descent import Descent
from rhino.sharding.kept import local_bytes, memory

_NAMED = 4


def explain(
    graph: Graph, cluster: Cluster, limit: int, costs: Costs, smallest: Descent, late: bool = False, parts: int = 1
) -> NothingFits:
    """The error for a program of which no plan found fits; names the largest tensors of the smallest plan.

    Args:
      late: whether the search was ended by its time budget, so that there may be smaller ones.
      parts: the micro-batches that the program is a loop over.
    """
    used = memory(costs, smallest.states, lifetimes(graph))
    arguments = [
        (local_bytes(costs, smallest.states, a.value), a.name) for a in graph.arguments if a.value not in graph.hosted
    ]
    temporaries = []
    for v, size in used.live:
        value = graph.values[v]
        op = graph.ops[value.producer] if value.producer >= 0 else None
        what = op.name.split(".")[-1] if op else "loop value"
        shape = "x".join(map(str, value.shape))
        temporaries.append(
            (size, f"{what} tensor<{shape}x{value.dtype}>{' at ' + op.where if op and op.where else ''}")
        )
    largest = sorted([*arguments, *temporaries], key=lambda entry: (-entry[0], entry[1]))[:_NAMED]
    needed = used.peak_bytes
    # The search aims below the limit.
    enough = int(needed / AIM) + 1
    tensors = ", ".join(f"{name} {nbytes(size)}" for size, name in largest)
    devices = -(-enough // limit) * cluster.num_devices
    return NothingFits(
        f"memory limit {nbytes(limit)} per device cannot be met on {cluster.name}{' in the time budget' * late}: "
        f"the smallest plan found{f', in {parts} micro-batches,' if parts > 1 else ''} needs "
        f"{nbytes(needed)}, {nbytes(used.argument_bytes)} of it arguments; largest: {tensors}",
        f"raise the limit to {enough} bytes, use about {devices} devices, or make the batch smaller",
    )
