"""Which collectives of a sum leave the loop that adds up what they make, so that they are made once.

Owns what XLA's `WhileLoopAllReduceCodeMotion` does with a conversion; knows no times.
"""

from __future__ import annotations

from collections.abc import Sequence

from rhino.sharding.layout import Layout, RouteStep
from rhino.sharding.problem import PARTIAL, LayoutTransfer
from rhino.xla import BackEnd


def leaving(
    back_end: BackEnd, transfer: LayoutTransfer, source: Layout, target: Layout, steps: Sequence[RouteStep]
) -> int:
    """How many of a conversion's collectives, the last ones, are made when the loop is over.

    What is summed leaves, and what is summed of parts that were scattered in every trip; not what is cut, too.
    `XLA: sums-leave-loops, scattered-sums-leave-loops, sliced-sums-stay-in-loops`
    """
    if transfer.late == transfer.trips or not back_end.sums_leave_loops:
        return 0
    ends = list(zip(source, target, strict=True))
    kinds = [step.kind for step in steps]
    scatters = any(s == PARTIAL and t >= 0 for s, t in ends)
    if any(s not in (PARTIAL, t) for s, t in ends) or (scatters and "reduce-scatter" not in kinds):
        return 0
    return next((n for n, kind in enumerate(reversed(kinds)) if kind != "all-reduce"), len(kinds))
