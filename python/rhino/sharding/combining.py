"""What collectives take that XLA combines: one start for all of them.

Owns which may be combined, and each one's share of the seconds. `XLA: collectives-combined,
gathers-combined, threshold-keeps-apart`
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping

from rhino.machine.collectives import CommModel
from rhino.sharding.problem import LayoutTransfer, Problem
from rhino.sharding.symmetry import Quotient


def combinable(problem: Problem, quotient: Quotient, stored: Collection[int]) -> Mapping[int, float]:
    """Per tied transfer, how many times its own bytes all have that its collectives may be combined with; at least 1.

    Those of parameters, of gradients, or of parameters' next values: nothing waits for one of them before another
    starts. No layout is known yet: all count as divided alike. Vectors, which plans seldom divide as they divide
    matrices, have a start of their own; and of a layer in a loop vectors count as combined, and of matrices only those
    that are decided as one: others are often near the limit, or split over different axes.

    Args:
      stored: the tied transfers that move parameters or gradients (`rhino.sharding.overlap`).
    """
    ops, values = problem.graph.ops, problem.graph.values

    def alike(transfer: LayoutTransfer) -> Hashable:
        value = values[transfer.value]
        matrix = sum(n > 1 for n in value.shape) > 1
        layer = ops[transfer.op].parent if transfer.trips > 1 else -1
        alone = transfer.index if matrix and transfer.trips > 1 else -1
        return transfer.kind, layer, transfer.trips, value.dtype, matrix, alone

    tied = [(transfer, alike(transfer), count) for transfer, count in quotient.transfers if transfer.index in stored]
    total: dict[Hashable, float] = defaultdict(float)
    for transfer, key, count in tied:
        total[key] += count * values[transfer.value].nbytes
    return {transfer.index: total[key] / max(1, values[transfer.value].nbytes) for transfer, key, _ in tied}


def shared_seconds(comm: CommModel, kind: str, axes: tuple[int, ...], nbytes: float, together: float) -> float:
    """Seconds of a collective that is a part of one of `together` bytes; its own where it is no smaller."""
    if not 0 < nbytes < together:
        return comm.time(kind, axes, nbytes)
    return comm.time(kind, axes, together) * nbytes / together
