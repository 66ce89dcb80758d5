"""The steady time per micro-batch of a simulated step: how far apart its micro-batches end once it has settled.

Owns where a step is settled and how its rhythm is measured: exactly, over a whole number of its periods.
"""

from __future__ import annotations

from collections.abc import Sequence

from rhino.pipeline.schedule.costs import PipelineCosts
from rhino.pipeline.schedule.tasks import ScheduledStep

_CLOSE = 1e-9


def steady_time(
    schedule: ScheduledStep,
    costs: PipelineCosts,
    forward_ends: Sequence[Sequence[float]],
    backward_ends: Sequence[Sequence[float]],
    step_time_s: float,
) -> float:
    """Seconds between the ends of micro-batches, on the stage that starts first: the one with the most stages after it.

    Its last backwards run without forwards between them, as many as its warm-up count; what comes before is steady once
    the pipeline has filled. Where all forwards come first (gpipe), a micro-batch costs what it costs in both halves.
    """
    depths = costs.depths()
    stage = depths.index(max(depths))
    forwards, backwards = forward_ends[stage], backward_ends[stage]
    m = schedule.microbatches
    first = backwards[0] if backwards else 0.0
    ahead = sum(end < first for end in forwards)
    if m == 1:
        return step_time_s
    if ahead >= m:
        last = depths.index(min(depths))
        return _rhythm(forward_ends[last]) + _rhythm(backwards)
    settled = backwards[: m - ahead + 1]
    return _rhythm(settled if len(settled) > 2 else backwards)


def _rhythm(ends: Sequence[float]) -> float:
    """The mean gap between ends, over whole periods where the second half of them repeats itself."""
    count = len(ends)
    half = count // 2
    for period in range(1, half):
        step = ends[-1] - ends[-1 - period]
        slack = _CLOSE * abs(ends[-1])
        if all(abs(ends[i] - ends[i - period] - step) <= slack for i in range(count - half, count) if i >= period):
            return step / period
    return (ends[-1] - ends[half]) / (count - 1 - half) if count - 1 > half else ends[-1] - ends[0]
