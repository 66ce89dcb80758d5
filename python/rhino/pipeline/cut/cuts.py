"""The best cut of a given family of downward-closed sets ("ideals") of units into stages: exact dynamic programming.

Owns the sweep over the slowest stage's time, which is exact where all links are alike. All ideals of a graph make the
cut exact for the graph; the prefixes of one topological order make it the best of that order, which is what published
systems solve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from rhino.pipeline.cut.narrowing import Segments, narrow
from rhino.pipeline.cut.problem import StageOptions, StageProblem, allowed, evaluate, slowest_allowed

# Pareto points of (slowest stage, rest) after which the sweep stops and says how far it may be from the optimum.
_SWEEPS = 400
_TINY = 1e-12


@dataclass(frozen=True, slots=True)
class StageCut:
    """The best stages found, None if there are none, and a bound on every cut of the family."""

    stages: tuple[int, ...] | None
    bound_s: float


def all_ideals(problem: StageProblem, limit: int) -> list[int] | None:
    """Every set of units that can be the first stages, as bit masks from the empty one; None if more than `limit`."""
    before = [0] * len(problem.units)
    for u, v in problem.precedences:
        before[v] |= 1 << u
    found = {0, (1 << len(problem.units)) - 1}
    for least, most in dict.fromkeys(_between(problem, s) for s in range(1, max(2, problem.stages))):
        found.add(least)
        front = [least]
        while front:
            grown: dict[int, None] = {}
            for ideal in front:
                for v, needed in enumerate(before):
                    if most >> v & 1 and not ideal >> v & 1 and needed & ideal == needed:
                        grown[ideal | 1 << v] = None
            found.update(grown)
            if len(found) > limit:
                return None
            front = list(grown)
    return sorted(found, key=lambda ideal: (ideal.bit_count(), ideal))


def _between(problem: StageProblem, stages: int) -> tuple[int, int]:
    """The units that are on the first so many stages by their pins, and those that can be."""
    least = sum(1 << u for u, (_, last) in enumerate(problem.ranges) if last < stages)
    return least, sum(1 << u for u, (first, _) in enumerate(problem.ranges) if first < stages)


def prefixes(order: Sequence[int]) -> list[int]:
    """The ideals of one order."""
    found = [0]
    for u in order:
        found.append(found[-1] | 1 << u)
    return found


def best_cut(problem: StageProblem, options: StageOptions, ideals: Sequence[int], known_s: float = inf) -> StageCut:
    """The cut of least objective among those made of `ideals` (sorted by size).

    `known_s` is the objective of a cut that is known: the answer may be worse, and the bound is of those better.
    """
    sweep = _Sweep(problem, options, ideals, known_s)
    cut = sweep.run()
    if problem.uniform or cut.bound_s == inf:
        return cut
    best: tuple[tuple[int, ...] | None, float] = None, known_s
    if cut.stages is not None:
        found = evaluate(problem, options, cut.stages)
        if not allowed(problem, options, found):
            cut = StageCut(None, cut.bound_s)
        elif found.objective_s <= known_s:
            best = cut.stages, found.objective_s
    if best[1] <= cut.bound_s * (1 + options.gap):
        return cut
    stages, bound_s = narrow(problem, options, sweep.member, sweep.segments(), best, cut.bound_s)
    return StageCut(stages or cut.stages, bound_s)


def _least(matrix: Sequence[Sequence[float]], stage: int) -> float:
    """From the first stage to another, directly or hop by hop."""
    return min(matrix[0][stage], sum(matrix[s][s + 1] for s in range(stage)))


class _Sweep:
    """Segments are pairs of ideals (inner, outer); a cut is a path of segments, one per stage.

    A transfer is priced by the cheapest link into its stage, which is a bound where links differ.
    """

    def __init__(self, problem: StageProblem, options: StageOptions, ideals: Sequence[int], known_s: float) -> None:
        self.problem, self.options = problem, options
        units = problem.units
        member = np.array([[i >> u & 1 for u in range(len(units))] for i in ideals], dtype=bool)
        load = member @ np.array([u.forward_s + u.backward_s for u in units])
        limit = min(slowest_allowed(problem, options), self._hopeless(known_s))
        ends = self._ends(member)
        usable = self._boundaries(load, limit, ends)
        self.member, load, self.ends = member[usable], load[usable], ends[:, usable]
        outside = (~self.member).astype(np.float32)
        within = self.member.astype(np.float32) @ outside.T < 0.5
        np.fill_diagonal(within, False)
        within &= (load[None, :] - load[:, None]) <= limit * max(problem.speeds) * (1 + 1e-9)
        outer, inner = np.nonzero(within.T)  # sorted by the outer ideal
        self.inner, self.outer = inner, outer
        self.load = load[outer] - load[inner]
        self.starts = np.flatnonzero(np.r_[True, outer[1:] != outer[:-1]]) if len(outer) else np.zeros(0, int)
        self.heads = outer[self.starts] if len(outer) else outer
        self._traffic()
        self._stages(limit)

    def _hopeless(self, known_s: float) -> float:
        """Above this a stage makes a cut no better than the one that is known."""
        problem = self.problem
        if known_s == inf or problem.microbatches == 1:
            return inf
        total = sum(u.forward_s + u.backward_s for u in problem.units)
        return (known_s * (1 + 1e-9) - total / max(problem.speeds)) / (problem.microbatches - 1)

    def _ends(self, member: Any) -> Any:
        """By number of stages and ideal, whether by their pins these stages can have just the units of the ideal."""
        first, last = np.array(self.problem.ranges).T
        counts = range(self.problem.stages + 1)
        return np.array([member[:, last < n].all(axis=1) & ~member[:, first >= n].any(axis=1) for n in counts])

    def _boundaries(self, load: Any, limit: float, ends: Any) -> Any:
        """Which ideals leave no more on either side than as many stages can take, for some stage they may end."""
        speeds = np.array(self.problem.speeds)
        first = np.cumsum(np.r_[0.0, speeds])
        room = limit * (1 + 1e-9)
        if room < inf:
            before, after = first[:, None] * room, (first[-1] - first)[:, None] * room
            ends = ends & (load <= before) & (load[-1] - load <= after)
        usable = ends.any(axis=0)
        usable[[0, -1]] = True
        return usable

    def segments(self) -> list[Segments]:
        """Those allowed, by stage."""
        return [
            Segments(self.inner[kept], self.outer[kept], time[kept], cost[kept])
            for time, cost, kept in zip(self.time, self.cost, self.allowed, strict=True)
        ]

    def _traffic(self) -> None:
        """Bytes and messages that arrive at each segment, of micro-batches and of shared parameters."""
        size = len(self.inner)
        self.moved = {kind: (np.zeros(size), np.zeros(size)) for kind in ("forward", "backward", "shared", "first")}
        # What every ideal has is on the first stage, so that it is known where it is sent from.
        first: Any = self.member[1:].all(axis=0)
        columns: dict[int, Any] = {}

        def inside(u: int) -> Any:
            if u not in columns:
                columns[u] = self.member[self.outer, u] & ~self.member[self.inner, u]
            return columns[u]

        for net in self.problem.merged_nets:
            touched = inside(net.readers[0])
            for u in net.readers[1:]:
                touched = touched | inside(u)
            touched = touched & ~inside(net.root)
            nbytes, count = self.moved["first" if net.kind == "shared" and first[net.root] else net.kind]
            nbytes += net.nbytes * touched
            count += net.count * touched

    def _stages(self, limit: float) -> None:
        """Per stage, which segments are allowed, their time, and what they add to the objective."""
        problem, options, n = self.problem, self.options, self.problem.stages
        units = problem.units
        static = self.member @ np.array([u.static_bytes for u in units], dtype=float)
        active = self.member @ np.array([u.activation_bytes for u in units], dtype=float)
        static, active = static[self.outer] - static[self.inner], active[self.outer] - active[self.inner]
        static = static + self.moved["shared"][0] + self.moved["first"][0]
        self.time, self.cost, self.allowed = [], [], []
        for s in range(n):
            seconds = {}
            for kind, (nbytes, count) in self.moved.items():
                others = [c for c in range(n) if c != s]
                sources = {"forward": range(s), "backward": range(s + 1, n)}.get(kind, others)
                cheapest = min((problem.byte_s[c][s] for c in sources), default=0.0)
                quickest = min((problem.latency_s[c][s] for c in sources), default=0.0)
                if kind == "first":
                    cheapest, quickest = (_least(matrix, s) for matrix in (problem.byte_s, problem.latency_s))
                seconds[kind] = nbytes * cheapest + count * quickest
            arriving = seconds["forward"] + seconds["backward"]
            time = self.load / problem.speeds[s] + options.exposure * arriving
            fitting = time <= limit * (1 + 1e-9)
            if problem.memory_limits[s]:
                fitting &= static + problem.in_flight[s] * active <= problem.memory_limits[s] + 0.5
            self.time.append(time)
            self.cost.append(time + arriving + seconds["shared"] + seconds["first"])
            self.allowed.append(fitting & self.ends[s][self.inner] & self.ends[s + 1][self.outer])

    def _path(self, longest: float, bottleneck: bool = False) -> tuple[list[int] | None, float]:
        """The cheapest path of stages that take at most `longest`; with `bottleneck`, of the shortest slowest stage."""
        n = self.problem.stages
        best = np.full(len(self.member), inf)
        best[0] = 0.0
        layers, values = [], [best]
        for s in range(n):
            step = self.time[s] if bottleneck else self.cost[s]
            reached = values[-1][self.inner]
            found = np.maximum(reached, step) if bottleneck else reached + step
            found = np.where(self.allowed[s] & (self.time[s] <= longest), found, inf)
            best = np.full(len(self.member), inf)
            if len(self.starts):
                best[self.heads] = np.minimum.reduceat(found, self.starts)
            layers.append(found)
            values.append(best)
        total = float(values[-1][-1])
        if total == inf:
            return None, inf
        segments = []
        at = len(self.member) - 1
        for s in reversed(range(n)):
            here = int(np.searchsorted(self.outer, at)), int(np.searchsorted(self.outer, at, side="right"))
            k = here[0] + int(np.argmin(layers[s][here[0] : here[1]]))
            segments.append(k)
            at = int(self.inner[k])
        return segments[::-1], total

    def run(self) -> StageCut:
        """Lower the time allowed to the slowest stage until no cut is left or none can be better."""
        turns = self.problem.microbatches - 1
        cheapest, least = self._path(inf)
        if cheapest is None:
            return StageCut(None, inf)
        path, shortest = self._path(inf, bottleneck=True)
        assert path is not None
        best_path, best = min(((p, self._objective(p)) for p in (cheapest, path)), key=lambda pair: pair[1])
        bound = turns * shortest + least
        if turns:
            longest = (best - least) / turns * (1 + 1e-9)
            for _ in range(_SWEEPS):
                found, rest = self._path(longest)
                if found is None:
                    bound = best
                    break
                objective = self._objective(found)
                if objective < best * (1 - _TINY):
                    best_path, best = found, objective
                bound = max(bound, turns * shortest + rest)
                if bound >= best * (1 - 1e-9):
                    break
                slowest = max(float(self.time[s][k]) for s, k in enumerate(found))
                longest = min(slowest * (1 - _TINY), (best - rest) / turns)
        else:
            bound = best
        stages = [0] * len(self.problem.units)
        for s, k in enumerate(best_path):
            for u in np.flatnonzero(self.member[self.outer[k]] & ~self.member[self.inner[k]]):
                stages[int(u)] = s
        return StageCut(tuple(stages), min(bound, best))

    def _objective(self, path: Sequence[int]) -> float:
        slowest = max(float(self.time[s][k]) for s, k in enumerate(path))
        rest = sum(float(self.cost[s][k]) for s, k in enumerate(path))
        return (self.problem.microbatches - 1) * slowest + rest
