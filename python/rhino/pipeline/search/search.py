"""`plan_jointly`: program + cluster -> the best pipeline: stages, replicas, mesh, micro-batches, schedule.

Owns the order in which pipelines are tried and when the search stops. How one is planned is in `planned`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush, nsmallest
from math import inf, prod

from rhino.errors import NoPlan
from rhino.machine import Cluster
from rhino.machine.host import task_start_seconds
from rhino.pipeline.search.between import summing_seconds
from rhino.pipeline.search.candidates import Shape, shapes
from rhino.pipeline.search.distributed import shared_bytes
from rhino.pipeline.search.options import JointOptions, check_options
from rhino.pipeline.search.placement import Placement
from rhino.pipeline.search.planned import WORTH, Planner
from rhino.pipeline.search.refusals import nothing, out_of_time, too_large
from rhino.pipeline.search.rescaled import RescaledPrograms
from rhino.pipeline.search.sharded import Layouts, Sharded
from rhino.pipeline.search.solution import JointSolution, PipelineCandidate, Programs
from rhino.program.alternative import Alternative
from rhino.program.data import STATE

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class SearchEffort:
    """How hard a level searches.

    Attributes:
      parts: how many counts of parts are tried of one shape, the most promising, and `ratio` from one to the next.
      wide: whether a replica may have devices on several hosts.
      exact: pipelines planned in full after the estimates.
    """

    parts: int
    ratio: int
    wide: bool
    exact: int


# Of the time in which 1F1B fills and drains a pipeline, what zero-bubble schedules and interleaved stages do it in.
_FILLING = 1 / 3

EFFORTS = {"O1": SearchEffort(5, 4, False, 8), "O2": SearchEffort(6, 2, True, 24)}


def plan_jointly(
    programs: Programs, cluster: Cluster, options: JointOptions, progress: Progress | None = None
) -> JointSolution:
    """The pipeline with the least simulated step time whose stages fit.

    Args:
      progress: called with (done, total, label).

    Raises:
      RhinoError: an option that cannot be meant, no pipeline uses all devices, or none fits the memory limit.
    """
    found, search = search_jointly(programs, cluster, options, progress)
    return found if search.told_truly(found.best) else search_jointly(programs, cluster, options, progress, False)[0]


def search_jointly(
    programs: Programs,
    cluster: Cluster,
    options: JointOptions,
    progress: Progress | None = None,
    derives: bool = True,
) -> tuple[JointSolution, JointSearch]:
    """As `plan_jointly`, with the search that found it.

    Args:
      derives: whether programs may be derived, not made: then the best one may be of a program that is another, as
        `JointSearch.told_truly` says.
    """
    check_options(options)
    tell = progress or (lambda done, total, label: None)
    derived = RescaledPrograms(programs)
    search = JointSearch(derived if derives else programs, cluster, options, tell)
    try:
        return search.run(), search
    except NoPlan:
        if not derived.derived:
            raise
    # Nothing is refused by a program that was only derived.
    search = JointSearch(programs, cluster, options, tell)
    return search.run(), search


@dataclass(frozen=True, slots=True, order=True)
class Draft:
    """A pipeline before its stages are planned: the most promising is the least of them.

    `slow` is whether writing it would take more than half of the time. With perfectly equal stages, `plain_s` is what
    it takes under 1F1B, `hope_s` what it may take, and `least_s` what it takes at least. `own` is whether its own
    program was laid out for that.
    """

    slow: bool
    plain_s: float
    stages: int
    parts: int
    shape: Shape = field(compare=False)
    own: bool = field(compare=False)
    hope_s: float = field(compare=False)
    least_s: float = field(compare=False)


class JointSearch:
    """The search of one program; `drafted` has the pipelines that were looked at, by shape, as estimated last."""

    def __init__(self, programs: Programs, cluster: Cluster, options: JointOptions, progress: Progress) -> None:
        self.programs, self.cluster, self.options, self.progress = programs, cluster, options, progress
        self.effort = EFFORTS[options.level]
        self.limit = options.memory_limit or cluster.device.plan_bytes
        self.begin = time.perf_counter()
        self.planner = Planner(programs, cluster, options, self.limit)
        self.losers = self.planner.losers
        self.half_s = options.deadline.at_most(inf) / 2
        # Until one is found: what any pipeline takes to write.
        self.deadline = self.planner.deadline = options.deadline.before(options.cut_s)
        self.uneven = False  # whether unequal stages were tried
        self.tried: set[Shape] = set()  # besides drafts
        self.drafted: dict[Shape, Draft] = {}
        self.least = 0  # bytes per device of what every pipeline keeps, where that alone is too much

    def run(self) -> JointSolution:
        estimates = self.options.deadline.half(found=True)
        queue = self.drafts() or self.others()
        if not queue:
            raise nothing(self.planner, self.least)
        best: PipelineCandidate | None = None
        done = 0
        bound = inf
        while queue or (best is None and (queue := self.others())):
            draft = heappop(queue)
            least_s = self.to_beat_s(best)
            late = self.late(draft.shape, best.shape) if best else self.deadline.over(found=False)
            if late and best is None:
                break
            # After one that is late, one with fewer tasks may still be written in time.
            if draft.hope_s >= least_s or late or (best and done >= self.effort.exact):
                bound = min(bound, draft.least_s)
                continue
            layouts = self.planner.lay_out(draft.shape)
            if layouts is None:
                continue
            # Estimates take half of the time at most: then what is promising is planned as it is.
            if not draft.own and not estimates.over():
                heappush(queue, self.draft(draft.shape, layouts))
                continue
            bound = min(bound, draft.least_s)
            self.progress(done, self.effort.exact, draft.shape.name)
            found = self.planner.planned(draft.shape)
            done += 1
            if found is not None:
                best = self.interleaved(found, self.better(best, found))
        if best is None:
            raise out_of_time(self.planner) if self.deadline.over(found=False) else too_large(self.planner)
        best = self.refined(best)
        bound = min(bound, best.step_time_s)
        spent, hopes = dict(self.planner.spent), dict[int, float]()
        for draft in self.drafted.values():
            hopes[draft.stages] = min(draft.hope_s, hopes.get(draft.stages, inf))
        return JointSolution(best, self.alternatives(best), done + len(self.tried), bound, self.elapsed_s, spent, hopes)

    def told_truly(self, best: PipelineCandidate) -> bool:
        """Whether a program of which a pipeline was found is as the step is when it is cut so."""
        return not isinstance(self.programs, RescaledPrograms) or self.programs.derived_truly(best.shape.parts)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the search began."""
        return time.perf_counter() - self.begin

    def to_beat_s(self, best: PipelineCandidate | None) -> float:
        """What a further pipeline has to be faster than; the first one is planned whatever it takes."""
        return min(best.step_time_s, self.options.rival_s) if best else inf

    def join(self, other: JointSearch) -> None:
        """Go on where the search of another program of the step ended: with its deadline, and one list of what lost."""
        self.begin, self.losers, self.deadline = other.begin, other.losers, other.deadline
        self.planner.losers, self.planner.best_s = other.losers, other.planner.best_s
        self.planner.deadline = other.planner.deadline

    def besides(self, shape: Shape, best: PipelineCandidate) -> PipelineCandidate:
        """The better of the best of another search and a pipeline of this one, with what is near that."""
        self.tried.add(shape)
        found = self.planner.planned(shape)
        if found is None:
            return best
        now = self.interleaved(found, self.better(best, found))
        return best if now is best else self.refined(now)

    def better(self, best: PipelineCandidate | None, found: PipelineCandidate) -> PipelineCandidate:
        """The better of the best so far and another one, after which there may be less time; the other one lost."""
        if best is not None:
            more = found.shape.chunks > best.shape.chunks or found.again != best.again
            worth = 1 - WORTH if more else 1.0
            if found.step_time_s >= worth * best.step_time_s:
                self.lose(found)
                return best
            self.lose(best)
        self.planner.best_s = found.step_time_s
        self.deadline = self.options.deadline.before(self.planner.writing_s(found.shape), found=True)
        self.planner.deadline = self.deadline.with_plan()
        return found

    def interleaved(self, found: PipelineCandidate, best: PipelineCandidate) -> PipelineCandidate:
        """The better of the best and a pipeline with twice as many stages on each group, and so on while that helps."""
        shape = found.shape
        while self.options.more_chunks and len(shape.distinct) == 1 and shape.groups > 1:
            # No schedule is shorter than what the busiest group computes.
            if max(found.simulation.busy_s) >= (1 - WORTH) * self.to_beat_s(best):
                break
            shape = replace(shape, chunks=2 * shape.chunks)
            if shape in self.tried or self.late(shape, best.shape):
                break
            self.tried.add(shape)
            # Where it does not fit no other layout is sought: one for less memory takes longer.
            other = self.planner.scheduled(shape, self.planner.lay_out(shape))
            if other is None:
                break
            best = self.better(best, other)
            if other.step_time_s >= (1 - WORTH) * found.step_time_s:
                break
            found = other
        return best

    def refined(self, best: PipelineCandidate) -> PipelineCandidate:
        """The best with half or twice as many parts, and so on while that is faster."""
        before: PipelineCandidate | None = None
        while best is not before and not self.options.microbatches:
            before, shape = best, best.shape
            for parts in (shape.parts // 2, shape.parts * 2):
                fits = parts >= shape.replicas and not parts % shape.replicas and not self.programs.batch % parts
                near = replace(shape, parts=parts)
                if not fits or near in self.tried or self.late(near, shape):
                    continue
                # In more parts groups compute and send no less.
                if parts > shape.parts and max(before.simulation.busy_s) >= self.to_beat_s(best):
                    continue
                # Each saves twice as much then, as twice as many do now. No layout is sought for less: it takes longer.
                twice = [2 * count for count in near.in_flight]
                if parts < shape.parts and max(before.pipeline.peak_bytes(twice)) > self.limit:
                    continue
                if self.planner.lay_out(near) is None:
                    continue
                self.tried.add(near)
                found = self.planner.planned(near)
                if found is not None:
                    best = self.interleaved(found, self.better(best, found))
            # Stages wait half as long each time: twice as many parts again spare at most half of what these did.
            if best.shape.parts > shape.parts and best.step_time_s > (1 - 2 * WORTH) * before.step_time_s:
                break
        return best

    def late(self, *shapes: Shape) -> bool:
        """Whether one of these would not be written in time, if that began now."""
        return self.options.deadline.before(max(map(self.planner.writing_s, shapes)), found=True).over()

    # --- estimates ----------------------------------------------------------------------------------------------------

    def others(self) -> list[Draft]:
        """As `drafts`, of unequal stages: only where the program cannot be cut into equal ones, which go first."""
        if self.options.stages or self.uneven or 1 not in self.options.shares or any(a.peak_bytes for a in self.losers):
            return []
        self.uneven = True
        return self.drafts()

    def drafts(self) -> list[Draft]:
        """All pipelines, as a heap by what they take with perfectly equal stages and no transfers."""
        options, cluster = self.options, self.cluster
        found: list[Draft] = []
        known: dict[tuple[int, ...], tuple[Layouts, int]] = {}
        by_width: dict[tuple[int, int, int, int], list[Shape]] = {}
        (kept, shared), taken = self.state_bytes(), prod(n for _, n in self.programs.example.graph.axes)
        asked = {"stages": options.stages, "microbatches": options.microbatches}
        for shape in shapes(
            cluster, self.programs.batch, **asked, shares=options.shares, fewer=options.fewer, uneven=self.uneven
        ):
            if shape.stages <= options.deeper or (shape.groups == 1 and not options.stages):
                continue  # one stage is no pipeline: `plan_sharding` searches those
            if options.mesh and sorted(shape.distinct) != sorted(map(prod, options.mesh)):
                continue
            if any(width % taken for width in shape.distinct):
                continue
            wide = shape.width > cluster.devices_per_host
            if wide and len(shape.distinct) == 1 and not (self.effort.wide or options.mesh):
                continue
            # However they are divided, parameters are somewhere in each replica, and optimizer state is in all of them.
            each = (kept + shared // shape.replicas) // sum(shape.widths)
            if each > self.limit:
                self.least = min(self.least or each, each)
                continue
            by_width.setdefault((shape.width, shape.stages, shape.groups, shape.replicas), []).append(shape)
        spaced = [self.spaced(choices) for choices in by_width.values()]
        # A coarse cut of each width stands for the others until they are promising: finer ones send no less.
        coarse = [shape for choices in spaced for shape in choices[: self.effort.parts]]
        for shape in sorted(coarse, key=lambda s: (s.width, s.parts)):
            if shape.distinct not in known:
                layouts = self.planner.lay_out(shape)
                if layouts is not None:
                    known[shape.distinct] = layouts, shape.parts
        for choices in spaced:
            told = [self.draft(shape, *known[shape.distinct]) for shape in choices if shape.distinct in known]
            found.extend(told if self.options.microbatches else nsmallest(self.effort.parts, told))
        heapify(found)
        return found

    def draft(self, shape: Shape, layouts: Layouts, parts: int = 0) -> Draft:
        """A pipeline with the layout of its program, or of the same cut into another number of parts."""
        bounds = [self.bounds(shape, layouts[width], parts or shape.parts) for width in shape.distinct]
        plain_s, *others = map(min, zip(*bounds, strict=True))
        slow = self.planner.writing_s(shape) > self.half_s
        drafted = Draft(slow, plain_s, shape.stages, shape.parts, shape, parts in (0, shape.parts), *others)
        self.drafted[shape] = drafted
        return drafted

    def spaced(self, choices: Sequence[Shape]) -> list[Shape]:
        """The finest parts, those `ratio` times as large, and so on."""
        ordered = sorted(choices, key=lambda s: -s.parts)
        if self.options.microbatches:
            return ordered
        picked = ordered[:1]
        for shape in ordered[1:]:
            if picked[-1].parts >= self.effort.ratio * shape.parts:
                picked.append(shape)
        return picked

    def bounds(self, shape: Shape, sharded: Sharded, parts: int) -> tuple[float, float, float]:
        """Seconds of a step with equal stages: under 1F1B, as may be hoped for, and at least.

        The hope is in schedules and interleaved stages: where all are open a pipeline fills in a third of what 1F1B
        takes. With the sum of replicas' gradients both are estimates. What a group computes, or its host starts, or its
        links take for each micro-batch is the least.

        Args:
          sharded: the layout of the program cut into so many.
        """
        prepared = self.programs.prepared(parts)
        assert prepared is not None
        loop = prepared.graph.microbatch_loop
        end = prepared.graph.ops[loop].region_end
        seconds = sharded.seconds
        inside = sum(seconds.compute[loop:end]) + sum(seconds.comm[loop:end])
        every = sum(seconds.compute) + sum(seconds.comm)
        micro_s, send_s = inside / shape.parts, self.send_s(shape)
        both_s = 2 * task_start_seconds(self.cluster, shape.groups)  # forward and backward
        each_s = max(micro_s / shape.groups, shape.chunks * both_s)
        first_s = max(micro_s, shape.stages * both_s) + (shape.stages - 1) * send_s
        rest_s = (shape.microbatches - 1) * max(each_s, send_s) + (every - inside) / shape.groups
        least_s = first_s + rest_s if self.options.fills else each_s + rest_s
        plain_s = first_s + rest_s + summing_seconds(self.cluster, shape, self.summed_bytes())
        spared_s = 0.0 if self.options.fills else (1 - _FILLING) * (first_s - each_s)
        return plain_s, plain_s - spared_s, least_s

    def send_s(self, shape: Shape) -> float:
        """Seconds that the smallest transfer between neighbours takes, one of which follows another."""
        placement = Placement.of(self.cluster, shape.groups)
        return min((placement.transfer_s(s, s + 1, 1) for s in range(shape.groups - 1)), default=0.0)

    def state_bytes(self) -> tuple[int, int]:
        """Bytes of parameters, optimizer state and gradients, undivided; of these what replicas may share out apart."""
        graph = self.programs.example.graph
        shared = shared_bytes(self.programs.example.ready.step, self.programs.example.updates)
        state = sum(graph.values[a.value].nbytes for a in graph.arguments if a.role in STATE)
        return state + self.summed_bytes() - shared, shared

    def summed_bytes(self) -> int:
        """Bytes of gradients, undivided."""
        graph = self.programs.example.graph
        return sum(graph.values[tie[0]].nbytes for tie in graph.ops[graph.microbatch_loop].ties if tie[2] != tie[3])

    # --- what lost ----------------------------------------------------------------------------------------------------

    def lose(self, candidate: PipelineCandidate) -> None:
        self.losers.append(Alternative(candidate.name, "", candidate.step_time_s, candidate.peak_bytes))

    def alternatives(self, best: PipelineCandidate) -> tuple[Alternative, ...]:
        """Those that lost, the fastest first, each once."""
        found: dict[str, Alternative] = {}
        for a in self.losers:
            if a.name != best.name and a.step_time_s is not None:
                slower = a.step_time_s / best.step_time_s - 1
                told = f"{slower:.1%} slower" if slower >= 0 else f"{-slower:.1%} faster, not worth more programs"
                why = a.why or told
                found.setdefault(a.name, replace(a, why=why))
        return tuple(sorted(found.values(), key=lambda a: a.rank))
