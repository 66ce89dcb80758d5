"""Pipelines of more stages than loops over layers were cut for: when these are looked for, besides the others.

Owns that choice (docs/design/pipelines.md, "The search"). How loops are cut is their programs' business.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Protocol, Self, TypeVar

from rhino.deadline import Deadline
from rhino.errors import NoPlan, NothingFits
from rhino.machine import Cluster
from rhino.pipeline.search.options import JointOptions
from rhino.pipeline.search.search import Progress
from rhino.pipeline.search.solution import JointSolution
from rhino.pipeline.search.ways import StepWays, plan_ways

# How many times as many pieces loops are cut into then: stages with other work besides can have fewer layers.
_FINER = 3
# That is worth it where what may be hoped for from more stages takes less than this share of the best.
_PROMISING = 2 / 3


class CutSteps(StepWays, Protocol):
    """A step in its ways, with loops over layers cut into pieces."""

    @property
    def pieces(self) -> int:
        """Into how many, at most."""

    def finer(self, pieces: int, deadline: Deadline) -> Self | None:
        """The same with loops cut into so many; None where none can be cut finer."""


Steps = TypeVar("Steps", bound=CutSteps)


def plan_deeper(
    steps: Steps, cluster: Cluster, options: JointOptions, progress: Progress | None = None
) -> tuple[Steps, int, JointSolution]:
    """As `plan_ways`, and the step that the pipeline is of: the given one, or the same cut finer.

    That is for more stages than the step was cut for, where no pipeline of fewer fits, or those promise much.

    Raises:
      RhinoError: as `plan_ways`, of the step as it was cut first.
    """
    try:
        way, solution = plan_ways(steps, cluster, options, progress)
    except NothingFits:
        can = cluster.num_devices > steps.pieces and not options.stages
        found = _deeper(steps, cluster, options, progress) if can else None
        if found is None:
            raise
        return found
    best_s = solution.best.step_time_s
    hope_s = min((s for stages, s in solution.hopes.items() if stages > steps.pieces), default=inf)
    if not options.stages and hope_s < _PROMISING * best_s:
        found = _deeper(steps, cluster, options, progress, best_s)
        if found is not None:
            return found
    return steps, way, solution


def _deeper(
    steps: Steps, cluster: Cluster, options: JointOptions, progress: Progress | None, best_s: float = inf
) -> tuple[Steps, int, JointSolution] | None:
    """The best pipeline of more stages than the step was cut for, if it takes less than the best of fewer."""
    finer = steps.finer(_FINER * steps.pieces, options.deadline)
    if finer is None:
        return None
    deeper = replace(options, deeper=steps.pieces, rival_s=min(best_s, options.rival_s))
    try:
        way, solution = plan_ways(finer, cluster, deeper, progress)
    except NoPlan:
        return None
    return (finer, way, solution) if solution.best.step_time_s < best_s else None
