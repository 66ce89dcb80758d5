"""`plan_jointly`: program + cluster -> the best pipeline: stages, replicas, mesh, micro-batches, schedule.

Owns the order in which pipelines are tried and when the search stops. How one is planned is in `planned`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from math import inf, prod

from rhino.errors import NoPlan, NothingFits, NotPipelined
from rhino.machine import Cluster
from rhino.machine.units import nbytes
from rhino.pipeline.search.candidates import Shape, shapes
from rhino.pipeline.search.distributed import shared_bytes
from rhino.pipeline.search.options import JointOptions, check_options
from rhino.pipeline.search.placement import Placement
from rhino.pipeline.search.planned import Planner
from rhino.pipeline.search.rescaled import RescaledPrograms
from rhino.pipeline.search.sharded import Layouts, Sharded
from rhino.pipeline.search.solution import JointSolution, PipelineCandidate, Programs
from rhino.program.alternative import Alternative
from rhino.program.data import STATE
from rhino.sharding.meshes import axes_text

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class SearchEffort:
    """How hard a level searches.

    Attributes:
      parts: how many counts of parts are tried, and `ratio` from one to the next.
      wide: whether a replica may have devices on several hosts.
      exact: pipelines planned in full after the estimates.
    """

    parts: int
    ratio: int
    wide: bool
    exact: int


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
    check_options(options)
    tell = progress or (lambda done, total, label: None)
    derived = RescaledPrograms(programs)
    try:
        found = _JointSearch(derived, cluster, options, tell).run()
    except NoPlan:
        if not derived.derived:
            raise
    else:
        if derived.derived_truly(found.best.shape.parts):
            return found
    # Nothing is refused, or chosen, by a program that was only derived.
    return _JointSearch(programs, cluster, options, tell).run()


@dataclass(frozen=True, slots=True, order=True)
class _Draft:
    """A pipeline before its stages are planned: the most promising is the least of them.

    `slow` is whether writing it would take more than half of the time. `bound_s` is what it takes with perfectly equal
    stages; `own` is whether its own program was laid out for that.
    """

    slow: bool
    bound_s: float
    stages: int
    parts: int
    shape: Shape = field(compare=False)
    own: bool = field(compare=False)


class _JointSearch:
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
        self.least = 0  # bytes per device of what every pipeline keeps, where that alone is too much

    def run(self) -> JointSolution:
        estimates = self.options.deadline.half(found=True)
        queue = self.drafts() or self.others()
        if not queue:
            raise self.nothing()
        drafts = list(queue)
        best: PipelineCandidate | None = None
        done = 0
        bound = inf
        while queue or (best is None and (queue := self.others())):
            draft = heappop(queue)
            least_s = best.step_time_s if best else inf
            late = self.late(draft.shape, best.shape) if best else self.deadline.over(found=False)
            if late and best is None:
                break
            # After one that is late, one with fewer tasks may still be written in time.
            if draft.bound_s >= least_s or late or (best and done >= self.effort.exact):
                bound = min(bound, draft.bound_s)
                continue
            layouts = self.planner.lay_out(draft.shape)
            if layouts is None:
                continue
            # Estimates take half of the time at most: then what is promising is planned as it is.
            if not draft.own and not estimates.over():
                heappush(queue, self.draft(draft.shape, layouts))
                continue
            bound = min(bound, draft.bound_s)
            self.progress(done, self.effort.exact, draft.shape.name)
            found = self.planner.planned(draft.shape)
            done += 1
            if found is None:
                continue
            if best is None or found.step_time_s < best.step_time_s:
                if best is not None:
                    self.lose(best)
                best = found
                self.deadline = self.options.deadline.before(self.planner.writing_s(best.shape), found=True)
                self.planner.deadline = self.deadline.with_plan()
            else:
                self.lose(found)
        if best is None:
            raise self.out_of_time() if self.deadline.over(found=False) else self.too_large(drafts)
        best, more = self.refined(best)
        done += more
        seconds = time.perf_counter() - self.begin
        return JointSolution(
            best, self.alternatives(best), done, min(bound, best.step_time_s), seconds, dict(self.planner.spent)
        )

    def refined(self, best: PipelineCandidate) -> tuple[PipelineCandidate, int]:
        """The best with half or twice as many parts, and so on while that is faster; and how many were planned."""
        done, tried = 0, {best.shape.parts}
        improved = not self.options.microbatches
        while improved:
            improved = False
            shape = best.shape
            for parts in (shape.parts // 2, shape.parts * 2):
                fits = parts >= shape.replicas and not parts % shape.replicas and not self.programs.batch % parts
                near = replace(shape, parts=parts)
                if parts in tried or not fits or self.late(near, shape):
                    continue
                tried.add(parts)
                if self.planner.lay_out(near) is None:
                    continue
                found = self.planner.planned(near)
                done += 1
                if found is None:
                    continue
                better, worse = (found, best) if found.step_time_s < best.step_time_s else (best, found)
                self.lose(worse)
                improved = improved or better is found
                best = better
        return best, done

    def late(self, *shapes: Shape) -> bool:
        """Whether one of these would not be written in time, if that began now."""
        return self.options.deadline.before(max(map(self.planner.writing_s, shapes)), found=True).over()

    # --- estimates ----------------------------------------------------------------------------------------------------

    def others(self) -> list[_Draft]:
        """As `drafts`, of unequal stages: only where the program cannot be cut into equal ones, which go first."""
        if self.options.stages or self.uneven or any(a.peak_bytes for a in self.losers):
            return []
        self.uneven = True
        return self.drafts()

    def drafts(self) -> list[_Draft]:
        """All pipelines, as a heap by what they take with perfectly equal stages and no transfers."""
        options, cluster = self.options, self.cluster
        found: list[_Draft] = []
        known: dict[tuple[int, ...], tuple[Layouts, int]] = {}
        by_width: dict[tuple[int, int, int], list[Shape]] = {}
        (kept, shared), taken = self.state_bytes(), prod(n for _, n in self.programs.example.graph.axes)
        asked = {"stages": options.stages, "microbatches": options.microbatches}
        for shape in shapes(cluster, self.programs.batch, **asked, fewer=options.fewer, uneven=self.uneven):
            if shape.stages == 1 and not options.stages:
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
            by_width.setdefault((shape.width, shape.stages, shape.replicas), []).append(shape)
        wanted = [shape for choices in by_width.values() for shape in self.spaced(choices)]
        # The coarsest cut of each width stands for the others until they are promising: finer ones send no less.
        for shape in sorted(wanted, key=lambda s: (s.width, s.parts)):
            if shape.distinct not in known:
                layouts = self.planner.lay_out(shape)
                if layouts is not None:
                    known[shape.distinct] = layouts, shape.parts
        for shape in wanted:
            if shape.distinct in known:
                layouts, parts = known[shape.distinct]
                found.append(self.draft(shape, layouts, parts))
        heapify(found)
        return found

    def draft(self, shape: Shape, layouts: Layouts, parts: int = 0) -> _Draft:
        """A pipeline with the layout of its program, or of the same cut into another number of parts."""
        bound_s = min(self.bound(shape, layouts[width], parts or shape.parts) for width in shape.distinct)
        slow = self.planner.writing_s(shape) > self.half_s
        return _Draft(slow, bound_s, shape.stages, shape.parts, shape, parts in (0, shape.parts))

    def spaced(self, choices: Sequence[Shape]) -> list[Shape]:
        """The finest parts, those `ratio` times as large, and so on: the same for all, for each takes time to read."""
        ordered = sorted(choices, key=lambda s: -s.parts)
        if self.options.microbatches:
            return ordered
        picked = ordered[:1]
        for shape in ordered[1:]:
            if picked[-1].parts >= self.effort.ratio * shape.parts:
                picked.append(shape)
        return picked[: self.effort.parts]

    def bound(self, shape: Shape, sharded: Sharded, parts: int) -> float:
        """Seconds of a step with equal stages that wait for the first micro-batch, or for the least that links take.

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
        first_s = micro_s + (shape.stages - 1) * send_s
        rest_s = (shape.microbatches - 1) * max(micro_s / shape.stages, send_s)
        return first_s + rest_s + (every - inside) / shape.stages

    def send_s(self, shape: Shape) -> float:
        """Seconds that the smallest transfer between neighbours takes, one of which follows another."""
        placement = Placement.of(self.cluster, shape.stages)
        return min((placement.transfer_s(s, s + 1, 1) for s in range(shape.stages - 1)), default=0.0)

    def state_bytes(self) -> tuple[int, int]:
        """Bytes of parameters, optimizer state and gradients, undivided; of these what replicas may share out apart."""
        graph = self.programs.example.graph
        shared = shared_bytes(self.programs.example.ready.step, self.programs.example.updates)
        state = sum(graph.values[a.value].nbytes for a in graph.arguments if a.role in STATE)
        sums = sum(graph.values[tie[0]].nbytes for tie in graph.ops[graph.microbatch_loop].ties if tie[2] != tie[3])
        return state + sums - shared, shared

    # --- what lost ----------------------------------------------------------------------------------------------------

    def lose(self, candidate: PipelineCandidate) -> None:
        self.losers.append(Alternative(candidate.name, "", candidate.step_time_s, candidate.peak_bytes))

    def alternatives(self, best: PipelineCandidate) -> tuple[Alternative, ...]:
        """Those that lost, the fastest first, each once."""
        found: dict[str, Alternative] = {}
        for a in self.losers:
            if a.name != best.name and a.step_time_s is not None:
                why = a.why or f"{a.step_time_s / best.step_time_s - 1:.1%} slower"
                found.setdefault(a.name, replace(a, why=why))
        return tuple(sorted(found.values(), key=lambda a: a.rank))

    def nothing(self) -> NoPlan:
        """Why no pipeline is worth a search."""
        options, cluster = self.options, self.cluster
        if self.least:
            return NothingFits(
                f"no pipeline fits in {nbytes(self.limit)} per device on {cluster.name}: parameters, "
                f"optimizer state and gradients alone take {nbytes(self.least)} of each device",
                "use more devices, or raise the limit",
            )
        batch, count = self.programs.batch, options.microbatches
        used = options.stages * prod(options.mesh[0]) if len(options.mesh) == 1 else 0
        if options.stages <= cluster.num_devices < used:
            size, most = prod(options.mesh[0]), cluster.num_devices // options.stages
            return NotPipelined(
                f"{options.stages} stages of {size} devices need {used}, and cluster {cluster.name} has "
                f"{cluster.num_devices}",
                f"give a mesh of {most} devices, or leave it to the search",
            )
        replicas = max(1, cluster.num_devices // used) if used else 1
        if count and options.fewer and batch % replicas:
            return NotPipelined(
                f"a batch of {batch} examples cannot be shared out among {replicas} replicas of each stage",
                f"pad or drop it, or give batches that {replicas} divides",
            )
        if count and not options.fewer and batch % (count * replicas):
            each = f" for each of {replicas} replicas" if replicas > 1 else ""
            return NotPipelined(
                f"a batch of {batch} examples cannot be cut into {count} equal micro-batches{each}",
                "ask for a number that divides the batch, or take another batch",
            )
        for _, parts, *_ in self.planner.laid_out:
            refusal = self.programs.refusal(parts)
            if refusal is not None:
                return NotPipelined(f"the step cannot be cut into {parts} parts: {refusal.message}", refusal.remedy)
        own = self.programs.example.graph.axes
        if (taken := prod(n for _, n in own)) > 1:
            these = f"of {options.stages} stages" if options.stages else "of two stages or more"
            return NotPipelined(
                f"no pipeline {these} on the {cluster.num_devices} devices of cluster {cluster.name} has stages that "
                f"hold the mesh {axes_text(own)} of the step's manual computations",
                f"ask for stages of {taken} devices or a multiple, or write the step for a smaller mesh",
            )
        if options.stages:
            # Says why there are no such stages.
            dealt = Placement.of(cluster, options.stages).widths
            if len(options.mesh) == 1 and len(set(dealt)) > 1:
                return NotPipelined(
                    f"{options.stages} stages on the {cluster.num_devices} devices of cluster {cluster.name} have "
                    f"{'+'.join(map(str, dealt))} of them, which no one mesh fits",
                    "leave the mesh to the search, or give a number of stages that divides the devices",
                )
        sizes = "+".join("x".join(map(str, mesh)) for mesh in options.mesh)
        asked = [f"mesh {sizes}"] * bool(sizes) + [f"{options.stages} stages"] * bool(options.stages)
        asked += [f"{options.microbatches} micro-batches"] * bool(options.microbatches)
        given = f" of {' and '.join(asked)}" if asked else ""
        return NotPipelined(
            f"no pipeline{given} uses the {cluster.num_devices} devices of cluster {cluster.name} "
            f"for a batch of {batch}",
            "ask for another number of stages or micro-batches, or leave them to the search",
        )

    def out_of_time(self) -> NotPipelined:
        return NotPipelined(
            f"no pipeline was found on {self.cluster.name} in the time budget, which ended the search",
            "allow more time, or ask for a number of stages",
        )

    def too_large(self, drafts: Sequence[_Draft]) -> NoPlan:
        needed = [(a.peak_bytes, a.name) for a in self.losers if a.peak_bytes]
        if self.losers and not needed:
            refused = self.losers[0]
            return NotPipelined(
                f"no pipeline is possible on {self.cluster.name}: {refused.name}: {refused.why}",
                "ask for another number of stages or micro-batches, or plan it as one program (stages=1)",
            )
        tight = min(needed, key=lambda entry: entry[0], default=None)
        needs = f": {tight[1]} needs {nbytes(tight[0])}" if tight else ""
        return NothingFits(
            f"no pipeline fits in {nbytes(self.limit)} per device on {self.cluster.name}{needs}",
            "use more devices, recompute activations (jax.checkpoint), or make the batch smaller",
        )
