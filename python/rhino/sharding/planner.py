"""`plan_sharding`: program + cluster -> the best mesh and the layout of every value.

Owns which meshes are searched in which order, and when to stop; how hard is in `rhino.sharding.levels`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from rhino.deadline import NEVER, Deadline
from rhino.errors import NothingFits
from rhino.machine import Cluster
from rhino.machine.roofline import perfect_s
from rhino.program.alternative import Alternative
from rhino.program.data import Graph
from rhino.program.memory import Lifetimes, Memory, lifetimes
from rhino.sharding.clearing import cleared
from rhino.sharding.cones import build_problem
from rhino.sharding.conflicts import reconsider
from rhino.sharding.costs import Costs, States
from rhino.sharding.cuts import arguments_cut
from rhino.sharding.descent import Setting, descend, jointly, start_from_nothing
from rhino.sharding.evaluate import predict
from rhino.sharding.infeasible import explain
from rhino.sharding.kept import memory
from rhino.sharding.levels import AT_ONCE, COSTLY, FEW, LEVEL_OF_FEW, LEVELS, Effort, SearchLevel
from rhino.sharding.limit import Limit, smallest, within
from rhino.sharding.meshes import (
    Mesh,
    checked_axes,
    checked_mesh,
    mesh_around,
    mesh_name,
    mesh_shapes,
    meshes_around,
    named,
    three_axes,
)
from rhino.sharding.milp import Bases
from rhino.sharding.outcome import MeshCandidate, Outcome, Progress, Steps
from rhino.sharding.pinning import pinned_states
from rhino.sharding.problem import Problem
from rhino.sharding.program import Solved
from rhino.sharding.solution import Solution
from rhino.sharding.symmetry import Quotient, tie_repeats, untied
from rhino.sharding.taken import LOCAL_AXIS
from rhino.sharding.time_model import ProgramTimes, TimeModel
from rhino.sharding.updates import parted_share

OUT_OF_TIME = "not finished: the time budget was spent"


@dataclass(frozen=True, slots=True)
class Options:
    """What to search.

    Args:
      level: "O1" or "O2" (docs/design/search.md, "Meshes and levels").
      mesh: sizes of the axes, outermost first; None tries all that suit the cluster.
      axes: names of the axes of `mesh`.
      memory_limit: bytes per device; None is nine tenths of the device's memory.
      deadline: when the best plan so far is returned, and when a search gives up that found none.
      life: when values live, and how often each is held at once; `lifetimes(graph)` by default.
      prepared: the problem of the graph and its ties, where they were made before (`prepare`).
      smallest: whether, where nothing fits, the smallest plan is looked for: the message names what that needs.
      sums: of how many devices the first axis has to be, for the program's local sums; 1 where it has none.
      rival_s: of `plan_in_parts`, the step time of a plan that there is already: slower ones do not matter.
      costly: of `plan_in_parts`, whether a step is also planned of which memory makes more than a third something
        else than computing divided perfectly, by its fastest plans that hold their arguments.
    """

    level: str = "O1"
    mesh: tuple[int, ...] | None = None
    axes: tuple[str, ...] = ()
    memory_limit: int | None = None
    deadline: Deadline = NEVER
    life: Lifetimes | None = None
    prepared: tuple[Problem, Quotient] | None = None
    smallest: bool = True
    rival_s: float = inf
    costly: bool = True
    sums: int = 1


@dataclass(frozen=True, slots=True)
class FreePlan:
    """What the fastest plan would take if memory were no matter: seconds, bytes at its peak, those of arguments.

    `limit_bytes` is what it may take. Where the fastest of all cannot hold its arguments within that it is `tight`, and
    this is the fastest that can, if there is one.
    """

    step_time_s: float
    peak_bytes: int
    argument_bytes: int
    limit_bytes: int
    tight: bool = False

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.limit_bytes


def plan_sharding(
    graph: Graph, cluster: Cluster, options: Options, progress: Progress | None = None, model: TimeModel | None = None
) -> Solution:
    """Finds the plan with the least predicted step time within the memory limit.

    Every mesh is searched without the limit first; then, best first, with it, until no other mesh can be better.

    Args:
      graph: the program, roles known, calls inlined.
      progress: called with (done, total, label) as meshes are finished.
      model: of time on the cluster; `TimeModel(cluster)` by default.

    Raises:
      RhinoError: no mesh suits the devices, or nothing fits the memory limit: the message names tensors and remedy.
    """
    search = MeshSearch(graph, model or TimeModel(cluster), options, progress)
    search.run()
    return search.solution()


class MeshSearch:
    """One program on one cluster: what is the same for all meshes, and what was found.

    `run` does all of it; `free` says before what the fastest plan would be if memory were no matter.
    """

    def __init__(self, graph: Graph, model: TimeModel, options: Options, progress: Progress | None = None) -> None:
        self.graph, self.model, self.options = graph, model, options
        progress = progress or (lambda done, total, label: None)
        cluster = self.cluster = model.cluster
        self.clock = [time.perf_counter()]
        self.deadline = options.deadline
        self.steps = Steps(progress)
        if options.mesh:
            checked_mesh(options.mesh, cluster, max(len(graph.axes), len(options.axes)))
        prepared = options.prepared
        self.problem = prepared[0] if prepared else build_problem(graph, uneven=True, parted=parted_share(graph))
        self.clock.append(time.perf_counter())
        self.small = options.level == "O2" and len(self.problem.nodes) <= FEW
        tied = options.prepared[1] if options.prepared else None
        self.quotient = untied(self.problem) if self.small else tied or tie_repeats(self.problem)
        self.clock.append(time.perf_counter())
        self.times = ProgramTimes.of(self.problem, self.quotient, model)
        self.perfect_s = perfect_s(self.times.seconds, self.times.launches, cluster.num_devices)
        self.limit = Limit(options.memory_limit or cluster.device.plan_bytes, options.life or lifetimes(graph))
        self.outcome = Outcome()
        self.cutoff_s = inf
        self.spent_s: list[float] = []
        self.begun: set[str] = set()  # levels whose first meshes were searched
        self.solved: Solved = {}
        self.bases: dict[bytes, Bases] = {}

    def free(self) -> FreePlan:
        """The fastest plan of the first meshes without the limit, which `run` goes on from."""
        name = "O2" if self.small else "O1"
        level = self._level(name)
        starts = self._suiting(dict.fromkeys(self._meshes(name)))
        self.steps.begin(len(starts))
        found = self._unlimited(starts, level, level.effort)
        least_s, least = self._fastest(found, level)
        tight = least.argument_bytes > self.limit.nbytes
        if tight and (held := self._holding_arguments(found)):
            found = held
            least_s, least = self._fastest(found, level)
        self.outcome.met.update((c.mesh, c) for c in found)
        return FreePlan(least_s, least.peak_bytes, least.argument_bytes, self.limit.nbytes, tight)

    @property
    def fastest_mesh(self) -> Mesh:
        """That of the fastest plan if memory were no matter."""
        return min(self.outcome.met.values(), key=lambda c: (c.best.objective, c.name)).mesh

    def _fastest(self, found: list[MeshCandidate], level: SearchLevel) -> tuple[float, Memory]:
        """Seconds of the first, and what the smallest as fast needs: of plans as fast one that fits is enough."""
        least_s = found[0].best.objective
        fast = [c for c in found if c.best.objective <= least_s * (1 + level.same)]
        used = [memory(c.setting.costs, c.best.states, self.limit.life) for c in fast]
        return least_s, min(used, key=lambda m: m.peak_bytes)

    def _holding_arguments(self, found: list[MeshCandidate]) -> list[MeshCandidate]:
        """The fastest plans of these meshes whose arguments are within the limit, the fastest first."""
        held: list[MeshCandidate] = []
        for c in found:
            cut = arguments_cut(c.setting.costs, c.best.states, self.limit.nbytes)
            best = descend(c.setting, c.setting.orders[0], c.best.states, [cut]) or start_from_nothing(c.setting, [cut])
            if best is not None:
                held.append(replace(c, best=best))
        return sorted(held, key=lambda c: (c.best.objective, len(c.setting.costs.sizes)))

    def run(self, cutoff_s: float = inf, quick: bool = False) -> bool:
        """All levels up to the one asked for, each from what the one before found; whether there is a plan.

        Args:
          cutoff_s: plans that take longer do not matter.
          quick: only the first meshes, with the first level's effort; another run goes on from there.
        """
        options, outcome = self.options, self.outcome
        self.cutoff_s = cutoff_s
        names = list(LEVELS)
        for name in names[: names.index(options.level) + 1]:
            if self.small and name != "O2":
                continue
            level = self._level(name)
            outcome.same = level.same
            meshes = self._meshes(name)
            if name not in self.begun:
                self.begun.add(name)
                self._round(dict.fromkeys(meshes), level, level.effort)
            if quick:
                break
            free = not (self.small or options.mesh or self.graph.axes)
            if name == "O1" and outcome.ranked and outcome.lost(self.perfect_s) > COSTLY:
                self._round(dict.fromkeys(meshes), level, AT_ONCE)
                # What one host sends much of, several may.
                while free and (wider := outcome.wider()) is not None and self._suiting({wider: None}):
                    self._round({wider: None}, level, AT_ONCE)
            # A third axis saves communication, and what several devices compute alike.
            if free and outcome.ranked and outcome.lost(self.perfect_s) > level.worth:
                self._round(dict(outcome.refined()), level, level.finer)
                if outcome.lost(self.perfect_s) > level.costly:
                    self._round(dict(outcome.permuted(self.cluster.devices_per_host)), level, level.finer)
        self.clock.append(time.perf_counter())
        return bool(outcome.ranked)

    def _level(self, name: str) -> SearchLevel:
        return LEVEL_OF_FEW if self.small else LEVELS[name]

    def _suiting(self, starts: Mapping[Mesh, Sequence[States] | None]) -> dict[Mesh, Sequence[States] | None]:
        """Those of some meshes that have a device on the first axis for each of the program's local sums."""
        return {mesh: start for mesh, start in starts.items() if self.options.sums in (1, mesh[LOCAL_AXIS][1])}

    def _meshes(self, level: str) -> list[Mesh]:
        """Those that a level tries first."""
        own, cluster, given = self.graph.axes, self.cluster, self.options.mesh
        if given:
            if self.options.axes:
                return [checked_axes(own, named(given, self.options.axes))]
            return [mesh_around(own, given, cluster) if own else named(given)]
        if own:
            return meshes_around(own, cluster, level)
        shapes = mesh_shapes(cluster, level)
        return [named(shape) for shape in (*shapes, *(three_axes(cluster.num_devices) if self.small else ()))]

    def solution(self, parts: int = 1) -> Solution:
        """The best plan found; `parts` is into how many parts of the batch the program was cut.

        Raises:
          NothingFits: nothing fits the memory limit.
        """
        clock, outcome = self.clock, self.outcome
        if not outcome.ranked:
            self._take_smallest(parts)
        self.steps.tell(self.steps.total - self.steps.before, "done")
        predicted, chosen = outcome.best
        costs, solve_s = chosen.setting.costs, sum(self.spent_s)
        found = Solution(
            mesh=chosen.mesh,
            level=self.options.level,
            predicted=predicted,
            alternatives=outcome.alternatives(),
            candidates=len(outcome.met),
            gap=outcome.gap(self.perfect_s),
            seconds=clock[-1] - clock[0],
            problem=self.problem,
            costs=costs,
            states=chosen.best.states,
            phases={
                "problem_s": clock[1] - clock[0],
                "tie_s": clock[2] - clock[1],
                "solve_s": solve_s,
                "evaluate_s": clock[3] - clock[2] - solve_s,
            },
        )
        if not self.small or self.deadline.over():
            return found
        # Without ties O2 is a search of its own, which may miss what O1 finds.
        try:
            tied = plan_sharding(self.graph, self.cluster, replace(self.options, level="O1"), model=self.model)
        except NothingFits:
            return found
        if tied.predicted.step_time_s >= found.predicted.step_time_s:
            return found
        return replace(tied, level=self.options.level, seconds=found.seconds + tied.seconds)

    def _take_smallest(self, parts: int) -> None:
        """The smallest plan where the search found none, if it fits.

        Raises:
          NothingFits: it does not; says why.
        """
        # One mesh is enough for the message.
        c = min(self.outcome.failed.values(), key=lambda c: c.best.peak_bytes)
        late = self.deadline.over(found=False)
        least = smallest(c.setting, self.limit, c.best) if self.options.smallest and not late else c.best
        if not least.fits:
            raise explain(self.graph, self.cluster, self.limit.nbytes, c.setting.costs, least, late, parts)
        self.outcome.rank(predict(c.setting.costs, least.states, self.limit.life), replace(c, best=least))

    @property
    def _least_s(self) -> float:
        """What a plan must beat."""
        return min(self.outcome.least_s, self.cutoff_s)

    def _setting(self, mesh: Mesh, effort: Effort, deadline: Deadline = NEVER) -> Setting:
        names, shape = tuple(name for name, _ in mesh), tuple(size for _, size in mesh)
        pinned = pinned_states(self.problem, self.quotient, shape, names).states
        costs = Costs.on(self.times, shape, names)
        return Setting(costs, pinned, *effort, self.spent_s, solved=self.solved, bases=self.bases, deadline=deadline)

    def _round(self, starts: Mapping[Mesh, Sequence[States] | None], level: SearchLevel, effort: Effort) -> None:
        """Plans on each mesh, from a plan within the limit if one is given, or from what was found before."""
        starts = self._suiting(starts)
        self.steps.begin(2 * len(starts))
        # Best first: the others have the better reason to be given up.
        order = self._unlimited(starts, level, effort)
        for done, candidate in enumerate(order):
            self.steps.tell(len(order) + done, candidate.name + ", memory")
            self._limited(candidate, level)

    def _unlimited(
        self, starts: Mapping[Mesh, Sequence[States] | None], level: SearchLevel, effort: Effort
    ) -> list[MeshCandidate]:
        """The best plan on each mesh whatever it needs, the fastest first, until time is over."""
        candidates: list[MeshCandidate] = []
        for done, (mesh, start) in enumerate(starts.items()):
            known = bool(candidates or self.outcome.ranked)
            if known and (self.deadline.over() or self.deadline.over(bool(self.outcome.ranked))):
                break
            self.steps.tell(done, f"mesh {mesh_name(mesh)}")
            if mesh in self.outcome.met:
                met = self.outcome.met[mesh]
                candidates.append(replace(met, setting=met.setting.with_effort(*effort)))
                continue
            setting = self._setting(mesh, effort, self.deadline.with_plan() if known else self.deadline.patient())
            cutoff = level.promise(mesh) * self._least_s
            found = descend(setting, setting.orders[0], start, (), cutoff) if start else start_from_nothing(setting)
            if found is not None:
                candidates.append(MeshCandidate(setting, found, start))
        return sorted(candidates, key=lambda c: (c.best.objective, len(c.setting.costs.sizes)))

    def _limited(self, candidate: MeshCandidate, level: SearchLevel) -> None:
        """The best plan of one mesh within the limit, as long as it can win."""
        outcome, limit, name = self.outcome, self.limit, candidate.name
        least_s, first = self._least_s, candidate.best
        outcome.met[candidate.mesh] = candidate
        # What is only as fast, on as many axes, would not be chosen.
        deadline = self.deadline.with_plan() if outcome.ranked else self.deadline
        setting = replace(candidate.setting, cutoff=least_s * (1 + max(outcome.same, 1e-6)), deadline=deadline)
        why = ""
        if first.objective > level.promise(candidate.mesh) * least_s:
            why = "slower even without the memory limit"
        elif (outcome.ranked or outcome.failed) and deadline.over(found=False):
            why = OUT_OF_TIME
        elif level.proves or memory(setting.costs, first.states, limit.life).peak_bytes <= limit.nbytes:
            first = jointly(setting, first)
            why = "slower even without the memory limit" if first.bound > setting.cutoff else ""
        if why:
            outcome.losers[name] = Alternative(name, why, first.objective, 0)
            return
        fitted = within(setting, limit, first, candidate.known)
        known = fitted.states if fitted.fits else candidate.known
        outcome.met[candidate.mesh] = replace(candidate, best=first, known=known)
        if fitted.fits:
            predicted, fitted = reconsider(setting, limit, fitted, candidate.known, level.missed)
            predicted, fitted = cleared(setting, limit, predicted, fitted)
            outcome.rank(predicted, replace(candidate, best=fitted))
            return
        outcome.failed[name] = replace(candidate, best=fitted)
        slow = fitted.bound > setting.cutoff
        why = "slower" if slow else f"needs {_gib(fitted.peak_bytes)} of {_gib(limit.nbytes)}"
        if deadline.over(found=False):
            why = OUT_OF_TIME
        outcome.losers[name] = Alternative(name, why, fitted.objective, fitted.peak_bytes)


def _gib(nbytes: float) -> str:
    return f"{nbytes / 2**30:.2f} GiB"
