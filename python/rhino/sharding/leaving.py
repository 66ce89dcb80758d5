"""Which collectives of a sum leave the loop that adds up what they make, so that they are made once.

Owns what XLA's `WhileLoopAllReduceCodeMotion` does with a conversion, and what that is in executions and seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rhino.sharding.layout import Layout, RouteStep
from rhino.sharding.problem import PARTIAL, LayoutTransfer

if TYPE_CHECKING:
    from rhino.sharding.costs import Costs, Steps


def executions(
    costs: Costs, transfer: LayoutTransfer, source: Layout, target: Layout, steps: Steps
) -> list[tuple[RouteStep, int]]:
    """The collectives of a conversion, and how often each is made in a step."""
    last = len(steps) - _leaving(costs, transfer, source, target, steps)
    return [(step, transfer.trips if n < last else transfer.late) for n, step in enumerate(steps)]


def late_seconds(costs: Costs, transfer: LayoutTransfer, source: Layout, target: Layout, steps: Steps) -> float:
    """Seconds of what a conversion sums when its loop is over: nothing of the loop's computing hides that."""
    late = steps[len(steps) - _leaving(costs, transfer, source, target, steps) :]
    return transfer.late * sum(costs.step_seconds(step, costs.combined(transfer)) for step in late)


def _leaving(costs: Costs, transfer: LayoutTransfer, source: Layout, target: Layout, steps: Steps) -> int:
    """How many of a conversion's collectives, the last ones, are made when the loop is over.

    What is summed leaves, and what is summed of parts that were scattered in every trip; not what is cut, too.
    `XLA: sums-leave-loops, scattered-sums-leave-loops, sliced-sums-stay-in-loops`
    """
    if transfer.late == transfer.trips or not costs.back_end.sums_leave_loops:
        return 0
    ends = list(zip(source, target, strict=True))
    kinds = [step.kind for step in steps]
    scatters = any(s == PARTIAL and t >= 0 for s, t in ends)
    if any(s not in (PARTIAL, t) for s, t in ends) or (scatters and "reduce-scatter" not in kinds):
        return 0
    return next((n for n, kind in enumerate(reversed(kinds)) if kind != "all-reduce"), len(kinds))
