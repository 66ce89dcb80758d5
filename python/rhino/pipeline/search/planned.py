"""One pipeline planned in full: the layout of its program, its stages, its schedule, and whether it fits.

Owns the order of these decisions, and layouts that pipelines share. Which pipelines are planned is in
`rhino.pipeline.search.search`.
"""

from __future__ import annotations

import time
from math import inf

from rhino.errors import NoPlan
from rhino.machine import Cluster
from rhino.pipeline.cut.plan import StagePlan
from rhino.pipeline.schedule import make_schedule, simulate
from rhino.pipeline.search.candidates import Shape
from rhino.pipeline.search.options import JointOptions
from rhino.pipeline.search.pipeline import Pipeline, pipeline, stage_step
from rhino.pipeline.search.placement import Placement
from rhino.pipeline.search.sharded import Layouts, Prepared, Sharded, lay_out_within, sharing
from rhino.pipeline.search.solution import PipelineCandidate, Programs, named
from rhino.program.alternative import Alternative


def plan_shape(
    programs: Programs, cluster: Cluster, shape: Shape, sharded: Sharded, schedule: str, memory_limit: int
) -> PipelineCandidate | None:
    """One pipeline with a layout that was found elsewhere; None if its stages do not fit."""
    options = JointOptions(schedule=schedule, memory_limit=memory_limit)
    return Planner(programs, cluster, options, memory_limit).scheduled(shape, dict.fromkeys(shape.distinct, sharded))


# Of GPT-39B, writing what was cut took 2.2 times the seconds of cutting the step; and the tasks of a stage and
# micro-batch, where there are thousands, about 3 times those of cutting one operation.
_WRITTEN = 2.25
_LISTED = 3


# How much faster, relatively, a step has to be for more programs to be run in it: parts of backward, or more stages.
WORTH = 0.005

# How often a layout is sought within the limit, how much less it has each time, and with how much too much none is.
_TIGHTER, _LESS, _HOPELESS = 3, 0.8, 1.5


class Planner:
    """Plans single pipelines within `limit` bytes per device.

    `losers` are those that did not fit or could not be cut. By shape, `peaks` and `times` are what those that were
    planned need and take at least, and `tight` are those that 1F1B has no room for as they were laid out and cut first.
    `spent` has the seconds that the decisions took. The `deadline` ends what is searched for one of them; a search that
    has a plan already says so there, and in `best_s` how long a step of it takes.
    """

    def __init__(self, programs: Programs, cluster: Cluster, options: JointOptions, limit: int) -> None:
        self.programs, self.cluster, self.options, self.limit = programs, cluster, options, limit
        self.deadline, self.best_s = options.deadline, inf
        self.laid_out: dict[tuple[int, ...], Sharded | None] = {}
        self.losers: list[Alternative] = []
        self.peaks: dict[Shape, int] = {}
        self.times: dict[Shape, float] = {}
        self.tight: set[Shape] = set()
        self.spent: dict[str, float] = {"layout_s": 0.0, "stages_s": 0.0, "schedule_s": 0.0}

    def writing_s(self, shape: Shape) -> float:
        """Seconds that writing a pipeline takes, by those that cutting took: its fragments and its task lists."""
        cuts = _WRITTEN + (not self.programs.is_cut(shape.parts))
        op_s = self.options.cut_s / max(1, len(self.programs.example.graph.ops))
        return cuts * self.options.cut_s + _LISTED * op_s * shape.stages * shape.microbatches

    def lay_out(self, shape: Shape, within: int = 0) -> Layouts | None:
        """The program on the stages of each width, `within` so many bytes if not 0; None if it cannot be."""
        found = {}
        for width in shape.distinct:
            key = width, shape.parts, *((*sharing(shape, width), within) if within else ())
            if key not in self.laid_out:
                start = time.perf_counter()
                prepared = self.programs.prepared(shape.parts)
                mesh, axes = self.options.mesh_of(width)
                self.laid_out[key] = (
                    lay_out_within(prepared, self.cluster, shape, width, mesh, within, axes, self.deadline)
                    if prepared is not None
                    else None
                )
                self.spent["layout_s"] += time.perf_counter() - start
            sharded = self.laid_out[key]
            if sharded is None:
                return None
            found[width] = sharded
        return found

    def planned(self, shape: Shape) -> PipelineCandidate | None:
        """The best schedule of the best stages; None if it cannot fit."""
        found = self.scheduled(shape, self.lay_out(shape))
        if found is not None or self.deadline.over(found=False):
            return found
        # Not within the limit: laid out again with the memory that stages leave, and with less if one has too little.
        within = self.limit
        for _ in range(_TIGHTER):
            before = len(self.losers)
            found = self.scheduled(shape, self.lay_out(shape, within))
            peaks = [a.peak_bytes for a in self.losers[before:] if a.peak_bytes]
            if found is not None or not peaks or min(peaks) > _HOPELESS * self.limit:
                return found
            within = round(_LESS * within * self.limit / min(peaks))
        return None

    def scheduled(self, shape: Shape, layouts: Layouts | None) -> PipelineCandidate | None:
        """The best schedule of a laid-out program; None if its stages do not fit."""
        prepared = self.programs.prepared(shape.parts)
        if layouts is None or prepared is None:
            return None
        piped = self.staged(shape, prepared, layouts, ())
        if piped is None:
            return None
        if max(piped[1].peak_bytes(shape.in_flight)) > self.limit:
            self.tight.add(shape)
        best = self.fastest(shape, prepared, layouts, *piped)
        if best is not None:
            return best
        # Cut again, for what each stage has besides arguments and saved activations.
        plan, costs = piped
        held = zip(plan.solution.evaluation.memory_bytes, shape.stage_widths, strict=True)
        counted = [nbytes * shape.width // w for nbytes, w in held]
        peaks = enumerate(costs.peak_bytes(shape.in_flight))
        besides = [max(0, peak - sum(counted[g :: shape.groups])) for g, peak in peaks]
        free = [self.limit - b - sum(counted[g :: shape.groups]) for g, b in enumerate(besides)]
        limits = tuple(max(1, c + free[s % shape.groups] // shape.chunks) for s, c in enumerate(counted))
        piped = self.staged(shape, prepared, layouts, limits)
        return None if piped is None else self.fastest(shape, prepared, layouts, *piped)

    def staged(
        self, shape: Shape, prepared: Prepared, layouts: Layouts, limits: tuple[int, ...]
    ) -> tuple[StagePlan, Pipeline] | None:
        placement = Placement.of(self.cluster, shape.groups)
        start = time.perf_counter()
        cut_for = self.options.microbatches if self.options.fewer else 0
        try:
            exact = self.options.level == "O2"
            plan = stage_step(prepared, layouts, shape, placement, limits, exact, cut_for, self.deadline)
        except NoPlan as error:
            self.losers.append(Alternative(named(shape, self.programs.again), error.message))
            return None
        finally:
            self.spent["stages_s"] += time.perf_counter() - start
        return plan, pipeline(prepared, layouts, plan, shape, placement, self.limit)

    def fastest(
        self, shape: Shape, prepared: Prepared, layouts: Layouts, plan: StagePlan, piped: Pipeline
    ) -> PipelineCandidate | None:
        """The fastest schedule that fits; of equally fast ones the first."""
        start = time.perf_counter()
        best: PipelineCandidate | None = None
        for name in self.options.schedules(shape.chunks):
            worth = WORTH if name in ("kfkb", "zero-bubble") else 1e-3
            # Once something fits, the others are for what could be faster than that, and than all that was found.
            if best is not None and max(best.simulation.busy_s) >= (1 - worth) * min(best.step_time_s, self.best_s):
                continue
            found = self.simulated(name, shape, prepared, layouts, plan, piped)
            if found is not None and (best is None or found.step_time_s < (1 - worth) * best.step_time_s):
                best = found
        self.spent["schedule_s"] += time.perf_counter() - start
        return best

    def simulated(
        self, name: str, shape: Shape, prepared: Prepared, layouts: Layouts, plan: StagePlan, piped: Pipeline
    ) -> PipelineCandidate | None:
        called = named(shape, self.programs.again, name)
        try:
            schedule = make_schedule(name, piped.costs, shape.microbatches)
        except NoPlan as error:
            peak = max(piped.peak_bytes(shape.in_flight))
            self.peaks[shape] = min(peak, self.peaks.get(shape, peak))
            fits = peak <= self.limit
            self.losers.append(Alternative(called, error.message, peak_bytes=None if fits else peak))
            return None
        simulation = simulate(schedule, piped.costs)
        peak = max(simulation.memory_peak_bytes)
        self.peaks[shape] = min(peak, self.peaks.get(shape, peak))
        self.times[shape] = min(simulation.step_time_s, self.times.get(shape, inf))
        if peak > self.limit:
            self.losers.append(Alternative(called, "does not fit", simulation.step_time_s, peak))
            return None
        return PipelineCandidate(shape, prepared, layouts, plan, piped, schedule, simulation, peak, self.programs.again)
