"""What collectives take that XLA combines: one start for all of them.

Owns which may be combined, and each one's share of the seconds. `XLA: collectives-combined,
gathers-combined, threshold-keeps-apart`
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping

from rhino.machine.collectives import CommModel
from rhino.sharding.problem import Problem
from rhino.sharding.symmetry import Quotient


def combinable(problem: Problem, quotient: Quotient, stored: Collection[int]) -> Mapping[int, float]:
    """Per tied transfer, the bytes of all that its collectives may be combined with, itself included.

    Those of parameters, of gradients, or of parameters' next values, that are made as often: nothing waits for one of
    them before another starts. No layout is known yet, so that bytes are those of whole tensors.

    Args:
      stored: the tied transfers that move parameters or gradients (`rhino.sharding.overlap`).
    """
    total: dict[tuple[str, int], float] = defaultdict(float)
    tied = [(transfer, count) for transfer, count in quotient.transfers if transfer.index in stored]
    for transfer, count in tied:
        total[transfer.kind, transfer.trips] += count * problem.graph.values[transfer.value].nbytes
    return {transfer.index: total[transfer.kind, transfer.trips] for transfer, _ in tied}


def shared_seconds(comm: CommModel, kind: str, axes: tuple[int, ...], nbytes: float, together: float) -> float:
    """Seconds of a collective that is a part of one of `together` bytes; its own where it is no smaller."""
    if not 0 < nbytes < together:
        return comm.time(kind, axes, nbytes)
    return comm.time(kind, axes, together) * nbytes / together
