"""Pipelines whose steps compute values again, or keep all: which of these are planned besides those of the step itself.

Owns that choice and its estimates (docs/design/pipelines.md, "What is computed again"). How a step computes again is
its programs' business, and how one pipeline is planned `planned`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import Protocol

from rhino.errors import NoPlan, NothingFits
from rhino.machine import Cluster
from rhino.pipeline.search.candidates import Shape
from rhino.pipeline.search.options import JointOptions
from rhino.pipeline.search.search import JointSearch, Progress, search_jointly
from rhino.pipeline.search.solution import JointSolution, PipelineCandidate, Programs, named
from rhino.program.data import Graph
from rhino.program.recomputation import KEEP, Way
from rhino.sharding.parts import EFFORT, WORTH
from rhino.sharding.time_model import TimeModel

_KEEP = KEEP.told.policy
# By level, how many pipelines are planned besides the step's own.
_TRIES = {"O1": 8, "O2": 24}


class StepWays(Protocol):
    """A step, and the same with other values computed again."""

    @property
    def ways(self) -> Sequence[Way]:
        """The step as it is, the plain one where that differs, then what adds to either, from least to most."""

    def base(self, way: int) -> Graph:
        """The program, whole, by whose operations a way is told: the step, or the plain one."""

    def programs(self, way: int) -> Programs:
        """The step in one of its ways, to be cut."""


def plan_ways(
    steps: StepWays, cluster: Cluster, options: JointOptions, progress: Progress | None = None
) -> tuple[int, JointSolution]:
    """The pipeline with the least simulated step time whose stages fit, and the number of its way.

    The step as it is is searched in full; where nothing fits, as the way that keeps least. Of what was looked at there
    the most promising pipelines are planned in other ways: those that can be faster by what they compute, and may fit
    by what they keep. Ways of which only the first segments are computed again keep least where most micro-batches are
    in flight.

    Raises:
      RhinoError: as `plan_jointly`, of the step as it is.
    """
    tell = progress or (lambda done, total, label: None)
    search = _WaySearch(steps, cluster, options, tell)
    way, found = search.run()
    if search.searches[way].told_truly(found.best):
        return way, found
    return _WaySearch(steps, cluster, options, tell, derives=False).run()


@dataclass(frozen=True, slots=True, order=True)
class _Chance:
    """A pipeline in a way, before it is planned: what it may take, by that of another way."""

    hope_s: float
    way: int
    stages: int
    parts: int
    shape: Shape = field(compare=False)


class _WaySearch:
    def __init__(
        self, steps: StepWays, cluster: Cluster, options: JointOptions, progress: Progress, derives: bool = True
    ) -> None:
        self.steps, self.cluster, self.options, self.progress = steps, cluster, options, progress
        self.derives = derives
        self.seconds: dict[int, float] = {}
        self.needs: dict[Shape, dict[int, int]] = {}  # by shape and way, the bytes of those that were planned
        self.searches: dict[int, JointSearch] = {}
        self.tried: set[tuple[Shape, int]] = set()

    def run(self) -> tuple[int, JointSolution]:
        first, solution, search = self.searched()
        self.first, self.searches[first] = first, search
        self.state = search.state_bytes()
        self.limit = search.limit
        self.learn(first)
        best, at = solution.best, first
        ops = 0
        while len(self.tried) < _TRIES[self.options.level] and ops < EFFORT[self.options.level]:
            chance = min(self.chances(best), default=None)
            if chance is None or search.late(chance.shape, best.shape):
                break
            self.tried.add((chance.shape, chance.way))
            found = self.planned(chance, best)
            if chance.way in self.searches:
                ops += len(self.searches[chance.way].programs.example.graph.ops)
            if found is not best:
                best, at = found, chance.way
        if not self.tried:
            return first, solution
        least = min(self.work(way) / self.work(first) for way in (first, *(way for _, way in self.tried)))
        phases = [s.planner.spent for s in self.searches.values()]
        return at, replace(
            solution,
            best=best,
            alternatives=search.alternatives(best),
            candidates=solution.candidates + sum(len(s.tried) for s in self.searches.values() if s is not search),
            bound_s=min(least * solution.bound_s, best.step_time_s),
            seconds=search.elapsed_s,
            phases={name: sum(one[name] for one in phases) for name in phases[0]},
        )

    def searched(self) -> tuple[int, JointSolution, JointSearch]:
        """The search of the step as it is; where nothing fits, of the way that keeps least."""
        step = self.steps.programs(0)
        try:
            return 0, *search_jointly(step, self.cluster, self.options, self.progress, self.derives)
        except NothingFits as error:
            ways = self.steps.ways
            least = min(range(len(ways)), key=lambda way: (ways[way].told.kept_bytes, way))
            programs = self.steps.programs(least)
            if not least or programs.prepared(step.example.graph.microbatches) is None:
                raise
            try:
                return least, *search_jointly(programs, self.cluster, self.options, self.progress, self.derives)
            except NothingFits:
                raise  # which needs less
            except NoPlan:
                raise error from None

    # --- estimates ----------------------------------------------------------------------------------------------------

    @cached_property
    def kept(self) -> list[int]:
        """By way, bytes that it keeps for the backward pass, undivided."""
        return [way.told.kept_bytes for way in self.steps.ways]

    def chances(self, best: PipelineCandidate) -> list[_Chance]:
        """What may be faster than the best, and fit, in ways that were not tried."""
        search = self.searches[self.first]
        worth_s = (1 - WORTH[self.options.level]) * search.to_beat_s(best)
        hopes = {shape: draft.hope_s for shape, draft in search.drafted.items()}
        slip = self.slip(hopes)
        ways = [way for way in range(len(self.steps.ways)) if not self.is_idle(way)]
        found = []
        for shape, hope_s in hopes.items():
            likely = {way: self.likely_s(shape, way, slip * hope_s) for way in ways}
            faster = [way for way in ways if likely[way] < worth_s and (shape, way) not in self.tried]
            open_ = {way: fits for way in faster if (fits := self.fits(shape, way)) is not False}
            if not open_:
                continue
            way = min(open_, key=lambda way: (likely[way], way))
            seconds = likely[way]
            if open_[way] is None:
                # Nothing is known of its memory yet: that which keeps least tells that of the others.
                way = min(open_, key=lambda way: (self.kept[way], way))
            found.append(_Chance(seconds, way, shape.stages, shape.parts, shape))
        return found

    def is_idle(self, way: int) -> bool:
        """Whether a way neither computes nor keeps less than the first, or is that."""
        if way == self.first:
            return True
        worth = 1 - WORTH[self.options.level]
        return self.kept[way] >= worth * self.kept[self.first] and self.work(way) >= worth * self.work(self.first)

    def fits(self, shape: Shape, way: int) -> bool | None:
        """Whether a pipeline fits, by what it keeps and what others of this shape need; None if it only may."""
        if self.held_bytes(shape, way) > self.limit:
            return False
        known = self.needs.get(shape, {})
        if any(peak <= self.limit for other, peak in known.items() if self.kept[other] >= self.kept[way]):
            return True
        besides = [
            p - self.held_bytes(shape, other) for other, p in known.items() if self.kept[other] <= self.kept[way]
        ]
        return self.held_bytes(shape, way) + max(besides) <= self.limit if besides else None

    def slip(self, hopes: Mapping[Shape, float]) -> float:
        """How much longer than hoped for pipelines take at least, by those that were planned; at O2 all hope."""
        if self.options.level != "O1" or self.options.rival_s < inf:  # beside a rival few were planned
            return 1.0
        planner = self.searches[self.first].planner
        known = [s for s in planner.times if s in hopes and s not in planner.tight]
        return max(1.0, min((planner.times[s] / hopes[s] for s in known), default=1.0))

    def likely_s(self, shape: Shape, way: int, hope_s: float) -> float:
        """Seconds of a pipeline, by what it takes in other ways with memory enough; else by the hope for the first."""
        known = [
            search.planner.times[shape] * self.work(way) / self.work(other)
            for other, search in self.searches.items()
            if shape in search.planner.times and shape not in search.planner.tight
        ]
        return max(known, default=hope_s * self.work(way) / self.work(self.first))

    def work(self, way: int) -> float:
        """Seconds of all that a way computes, undivided."""
        if way not in self.seconds:
            each, known = TimeModel(self.cluster).seconds(self.steps.base(way)), self.steps.ways[way]
            self.seconds[way] = sum(each) + sum(each[op] for op in known.again) - sum(each[op] for op in known.spared)
        return self.seconds[way]

    def held_bytes(self, shape: Shape, way: int) -> int:
        """What the fullest group keeps of the step and for its backward pass on each device, divided perfectly."""
        kept, shared = self.state
        saved, in_flight, peak = self.saved_bytes(way, shape.stages), shape.in_flight, 0.0
        for group, width in enumerate(shape.widths):
            on = range(group, shape.stages, shape.groups)
            peak = max(peak, sum(saved[s] * in_flight[s] for s in on) / (shape.parts * width))
        return (kept + shared // shape.replicas) // sum(shape.widths) + round(peak)

    def saved_bytes(self, way: int, stages: int) -> list[float]:
        """By stage, what one of equal stages saves of the whole batch, undivided: less in the first ones."""
        ways = [one.told for one in self.steps.ways]
        told = ways[way]
        rest = next(one.kept_bytes for one in ways if one.policy == _KEEP and one.undoes == told.undoes)
        if told.policy == _KEEP:
            return [rest / stages] * stages
        alike = [one for one in ways if (one.policy, one.undoes) == (told.policy, told.undoes)]
        segments, loops = max(one.count for one in alike), max(one.loops for one in alike)
        share = told.loops / loops if loops else told.count / segments
        less = (rest - told.kept_bytes) / share
        parts = [min(1.0, max(0.0, share * stages - stage)) for stage in range(stages)]
        return [(rest - part * less) / stages for part in parts]

    # --- one of them --------------------------------------------------------------------------------------------------

    def planned(self, chance: _Chance, best: PipelineCandidate) -> PipelineCandidate:
        """The better of the best and a pipeline in its way, with what is near that."""
        shape, way = chance.shape, chance.way
        if way not in self.searches:
            programs = self.steps.programs(way)
            if programs.prepared(shape.parts) is None:
                return best
            self.searches[way] = JointSearch(programs, self.cluster, self.over_meshes(), self.progress)
            self.searches[way].join(self.searches[self.first])
        search = self.searches[way]
        self.progress(0, 1, named(shape, self.steps.ways[way].told))
        found = search.besides(shape, best)
        self.learn(way)
        return found

    def learn(self, way: int) -> None:
        """Takes over what the pipelines need that were planned in a way."""
        planner = self.searches[way].planner
        for shape, peak in planner.peaks.items():
            # Of what was laid out anew to fit the first need is what counts: with more room it is faster.
            self.needs.setdefault(shape, {})[way] = max(peak, self.limit + 1) if shape in planner.tight else peak

    def over_meshes(self) -> JointOptions:
        """The options with the mesh that was found for each width: what is computed again hardly asks for another."""
        options, found = self.options, self.searches[self.first].planner.laid_out
        if options.mesh:
            return options
        return replace(options, mesh=tuple({s.mesh: None for s in found.values() if s is not None}))
