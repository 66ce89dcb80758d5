"""`plan_sharding`: program + cluster -> the best mesh and the layout of every value.

Owns how hard each level searches, how candidates are ranked, and the answer's shape.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from rhino.cluster import Cluster
from rhino.cost.collectives import CommModel, RingModel
from rhino.cost.memory import lifetimes
from rhino.cost.roofline import matmul_seconds, op_seconds
from rhino.graph.data import Graph
from rhino.search.cones import build_problem
from rhino.search.conflicts import reconsider
from rhino.search.costs import Costs, States
from rhino.search.descent import Descent, Setting, descend, jointly, start_from_nothing
from rhino.search.evaluate import Prediction
from rhino.search.infeasible import explain
from rhino.search.limit import Limit, smallest, within
from rhino.search.meshes import AXIS_NAMES, checked_mesh, mesh_shapes, three_axes
from rhino.search.pinning import pinned_states
from rhino.search.solution import Alternative, Solution
from rhino.search.symmetry import tie_repeats, untied

LEVELS = ("O1", "O2")
Progress = Callable[[int, int, str], None]
_Effort = tuple[float, int, int]


@dataclass(frozen=True, slots=True)
class _Level:
    """How hard one level searches.

    Attributes:
      effort: how close to its optimum an integer program is brought, up to which size to the optimum itself, and which
        size is too large for several axes at once (see `Setting`).
      promising: by number of axes, how much slower than the best a mesh's plan from one axis at a time may be to be
        improved; to place three axes at once takes minutes and wins little.
      same: plans this close are as fast: the mesh with fewer axes is taken.
      worth: the share of communication from which a third axis is tried.
      missed: by how much a plan may be slower than its program said before others are looked for.
    """

    effort: _Effort
    promising: tuple[float, float, float]
    same: float
    worth: float
    missed: float


_LEVELS = {
    "O1": _Level((3e-3, 300, 20_000), (1.05, 1.05, 1.0), same=5e-4, worth=0.2, missed=1e-2),
    "O2": _Level((1e-3, 20_000, 250_000), (1.3, 1.3, 1.0), same=0.0, worth=0.0, missed=1e-3),
}
# From this share of communication O1 too places both axes of a mesh at once.
_COSTLY = 0.25
_AT_ONCE = (3e-3, 300, 100_000)
# Programs this small are searched without tying repeats at O2: equal decisions may then differ, and any mesh of two
# axes may win.
_FEW = 64
_ALL_PAIRS = (inf, inf, 1.0)


@dataclass(frozen=True, slots=True)
class Options:
    """What to search.

    Args:
      level: "O1" or "O2" (2-search section 3).
      mesh: sizes of the axes, outermost first; None tries all that suit the cluster.
      axes: names of the axes of `mesh`.
      memory_limit: bytes per device; None is the device's memory.
      budget_s: seconds after which the best plan so far is returned; None searches to the end.
      parallel_dots: forbid dots computed redundantly (a convention of published tables, not of Rhino).
      comm: builds the communication model of a mesh; the cluster's rings by default.
      seconds: undivided compute seconds per op; the cluster's roofline by default.
    """

    level: str = "O1"
    mesh: tuple[int, ...] | None = None
    axes: tuple[str, ...] = ()
    memory_limit: int | None = None
    budget_s: float | None = None
    parallel_dots: bool = False
    comm: Callable[[Cluster, tuple[int, ...]], CommModel] | None = None
    seconds: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Candidate:
    """One mesh: what its search needs, the best plan on it so far, and one known to be within the memory limit."""

    setting: Setting
    best: Descent
    known: Sequence[States] | None = None

    @property
    def name(self) -> str:
        return "mesh " + "x".join(map(str, self.setting.costs.sizes))


@dataclass(slots=True)
class _Outcome:
    """What the search has found so far, by mesh: plans within the limit, why others lost, plans without the limit."""

    same: float = 0.0
    ranked: dict[str, tuple[Prediction, _Candidate]] = field(default_factory=dict)
    losers: dict[str, Alternative] = field(default_factory=dict)
    failed: dict[str, _Candidate] = field(default_factory=dict)
    met: dict[tuple[int, ...], _Candidate] = field(default_factory=dict)

    @property
    def best(self) -> tuple[Prediction, _Candidate]:
        """Of plans as fast as the fastest one the one on the mesh with the fewest axes."""
        fast = [e for e in self.ranked.values() if e[0].step_time_s <= self.least_s * (1 + self.same)]
        return min(fast, key=lambda e: (len(e[1].setting.costs.sizes), e[0].step_time_s, e[1].name))

    @property
    def share(self) -> float:
        """Of the best plan's step time, what communication takes."""
        predicted = self.best[0]
        return predicted.comm_s / predicted.step_time_s if predicted.step_time_s else 0.0

    @property
    def least_s(self) -> float:
        return min((p.step_time_s for p, _ in self.ranked.values()), default=inf)

    def rank(self, predicted: Prediction, candidate: _Candidate) -> None:
        """Keeps a plan within the limit if it is the best on its mesh."""
        name = candidate.name
        if name not in self.ranked or predicted.step_time_s < self.ranked[name][0].step_time_s:
            self.ranked[name] = (predicted, candidate)

    def alternatives(self) -> tuple[Alternative, ...]:
        """Every mesh but the best plan's, the fastest first."""
        predicted, chosen = self.best
        found = [a for name, a in self.losers.items() if name not in self.ranked]
        for other, candidate in self.ranked.values():
            if candidate is not chosen:
                slower = other.step_time_s / predicted.step_time_s - 1 if predicted.step_time_s else 0.0
                found.append(Alternative(candidate.name, other.step_time_s, other.memory.peak_bytes, _slower(slower)))
        return tuple(sorted(found, key=lambda a: (a.step_time_s, a.name)))


@dataclass(slots=True)
class _Steps:
    """Progress over several rounds, each of which adds its steps to the total."""

    told: Progress
    before: int = 0
    total: int = 0

    def begin(self, count: int) -> None:
        self.before, self.total = self.total, self.total + count

    def tell(self, done: int, label: str) -> None:
        self.told(self.before + done, self.total, label)


def plan_sharding(graph: Graph, cluster: Cluster, options: Options, progress: Progress | None = None) -> Solution:
    """Finds the plan with the least predicted step time within the memory limit.

    Every mesh is searched without the limit first; then, best first, with it, until no other mesh can be better.

    Args:
      graph: the program, roles known, calls inlined.
      progress: called with (done, total, label) as meshes are finished.

    Raises:
      RhinoError: no mesh suits the devices, or nothing fits the memory limit: the message names tensors and remedy.
    """
    clock = [time.perf_counter()]
    deadline = clock[0] + options.budget_s if options.budget_s is not None else inf
    steps = _Steps(progress or (lambda done, total, label: None))
    if options.mesh:
        checked_mesh(options.mesh, cluster)
    problem = build_problem(graph)
    clock.append(time.perf_counter())
    small = options.level == "O2" and len(problem.nodes) <= _FEW
    quotient = untied(problem) if small else tie_repeats(problem)
    clock.append(time.perf_counter())
    seconds = list(options.seconds) if options.seconds is not None else op_seconds(graph, cluster)
    matmuls = matmul_seconds(graph, cluster) if options.seconds is None else {}
    limit = Limit(options.memory_limit or cluster.device.memory_bytes, lifetimes(graph))
    outcome = _Outcome()
    spent_s: list[float] = []

    def setting_on(shape: tuple[int, ...], level: _Level) -> Setting:
        comm = (options.comm or RingModel)(cluster, shape)
        names = options.axes or AXIS_NAMES[: len(shape)]
        costs = Costs.on(problem, quotient, cluster, comm, seconds, matmuls, names)
        if options.comm is not None:
            costs = replace(costs, host_bytes_s=inf, sums_merge=True, widens=False, window=0.0)
        pinned = pinned_states(problem, quotient, shape, names)
        return Setting(costs, pinned, options.parallel_dots, *level.effort, spent_s)

    def search(
        starts: dict[tuple[int, ...], Sequence[States] | None], level: _Level, effort: _Effort | None = None
    ) -> None:
        """Plans on each mesh, from a plan within the limit if one is given, or from what was found before."""
        candidates: list[_Candidate] = []
        steps.begin(2 * len(starts))
        for done, (shape, start) in enumerate(starts.items()):
            if (candidates or outcome.ranked) and time.perf_counter() > deadline:
                break
            steps.tell(done, "mesh " + "x".join(map(str, shape)))
            if shape in outcome.met:
                met = outcome.met[shape]
                candidates.append(replace(met, setting=met.setting.with_effort(*(effort or level.effort))))
                continue
            setting = setting_on(shape, level)
            found = descend(setting, setting.orders[0], start) if start else start_from_nothing(setting)
            if found is not None:
                candidates.append(_Candidate(setting, found, start))
        _limited(candidates, outcome, limit, level, steps, deadline)

    for name in LEVELS[: LEVELS.index(options.level) + 1]:
        level = _LEVELS[name]
        if small and name != "O2":
            continue
        if small:
            level = replace(level, promising=_ALL_PAIRS)
        outcome.same = level.same
        shapes = [checked_mesh(options.mesh, cluster)] if options.mesh else mesh_shapes(cluster, name)
        if small and not options.mesh:
            shapes = [*shapes, *three_axes(cluster.num_devices)]
        search(dict.fromkeys(shapes), level)
        if name == "O1" and outcome.ranked and outcome.share > _COSTLY:
            search(dict.fromkeys(shapes), level, _AT_ONCE)
        # A third axis only saves communication.
        if not small and not options.mesh and outcome.ranked and outcome.share > level.worth:
            search(dict(_refined(outcome)), level)
    clock.append(time.perf_counter())
    if not outcome.ranked:
        # Only for the message: one mesh is enough.
        c = min(outcome.failed.values(), key=lambda c: c.best.peak_bytes)
        raise explain(graph, cluster, limit.nbytes, c.setting.costs, smallest(c.setting, limit, c.best))
    steps.tell(steps.total - steps.before, "done")
    predicted, chosen = outcome.best
    costs = chosen.setting.costs
    return Solution(
        mesh=tuple(zip(options.axes or AXIS_NAMES, costs.sizes, strict=False)),
        level=options.level,
        predicted=predicted,
        alternatives=outcome.alternatives(),
        candidates=len(outcome.met),
        gap=_gap(predicted, outcome, sum(seconds) / cluster.num_devices),
        seconds=clock[-1] - clock[0],
        problem=problem,
        costs=costs,
        states=chosen.best.states,
        phases={
            "problem_s": clock[1] - clock[0],
            "tie_s": clock[2] - clock[1],
            "solve_s": sum(spent_s),
            "evaluate_s": clock[3] - clock[2] - sum(spent_s),
        },
    )


def _refined(outcome: _Outcome) -> Iterator[tuple[tuple[int, ...], list[States]]]:
    """The meshes that split an axis of the best one of two axes, each with that plan as it is on them."""
    pairs = [e for e in outcome.ranked.values() if len(e[1].setting.costs.sizes) == 2]
    if not pairs:
        return
    _, best = min(pairs, key=lambda e: (e[0].step_time_s, e[1].name))
    sizes = best.setting.costs.sizes
    for axis, size in enumerate(sizes):
        for outer in range(2, size):
            if size % outer == 0:
                shape = (*sizes[:axis], outer, size // outer, *sizes[axis + 1 :])
                yield shape, [(*s[: axis + 1], *s[axis:]) for s in best.best.states]


def _limited(
    candidates: list[_Candidate],
    outcome: _Outcome,
    limit: Limit,
    level: _Level,
    steps: _Steps,
    deadline: float,
) -> None:
    """The best plan of each mesh within the limit, best first, as long as others can win."""
    order = sorted(candidates, key=lambda c: (c.best.objective, len(c.setting.costs.sizes)))
    for done, candidate in enumerate(order):
        steps.tell(len(order) + done, candidate.name + ", memory")
        least_s, first, name = outcome.least_s, candidate.best, candidate.name
        outcome.met[candidate.setting.costs.sizes] = candidate
        # What is only as fast, on as many axes, would not be chosen.
        setting = replace(candidate.setting, cutoff=least_s * (1 + max(outcome.same, 1e-6)))
        if first.objective > level.promising[len(candidate.setting.costs.sizes) - 1] * least_s:
            why = "slower even without the memory limit"
        elif outcome.ranked and time.perf_counter() > deadline:
            why = "not finished: the time budget was spent"
        else:
            first = jointly(setting, first)
            why = "slower even without the memory limit" if first.bound > setting.cutoff else ""
        if why:
            outcome.losers[name] = Alternative(name, first.objective, 0, why)
            continue
        fitted = within(setting, limit, first, candidate.known)
        known = fitted.states if fitted.fits else candidate.known
        outcome.met[candidate.setting.costs.sizes] = replace(candidate, best=first, known=known)
        candidate = replace(candidate, best=fitted)
        if fitted.fits:
            predicted, fitted = reconsider(setting, limit, fitted, candidate.known, level.missed)
            outcome.rank(predicted, replace(candidate, best=fitted))
        else:
            outcome.failed[name] = candidate
            slow = fitted.bound > setting.cutoff
            why = "slower" if slow else f"needs {_gib(fitted.peak_bytes)} of {_gib(limit.nbytes)}"
            outcome.losers[name] = Alternative(name, fitted.objective, fitted.peak_bytes, why)


def _gap(predicted: Prediction, outcome: _Outcome, perfect_s: float) -> float:
    """Relative distance to what no plan on the meshes tried can beat: proved bounds, or computing divided perfectly."""
    bounds = [c.best.bound for _, c in outcome.ranked.values()]
    bound = max(perfect_s, min(bounds)) if len(bounds) == len(outcome.met) else perfect_s
    return max(0.0, 1 - bound / predicted.step_time_s) if predicted.step_time_s else 0.0


def _slower(share: float) -> str:
    return f"{share:.1%} slower" if share >= _LEVELS["O1"].same else "as fast"


def _gib(nbytes: float) -> str:
    return f"{nbytes / 2**30:.2f} GiB"
