"""The stage problem as an integer program, for graphs with too many ideals to try.

Owns the encoding (docs/design/stages.md, "The cut"). A unit has one binary per stage boundary, "at this stage or
before": precedences are then rows whose relaxation is integral, and what a net costs per stage is bounded by
differences of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from rhino.pipeline.cut.problem import Evaluation, Net, StageOptions, StageProblem, slowest_allowed
from rhino.sharding.milp import Milp

# A linear expression: coefficients by variable, and a constant.
Linear = tuple[dict[int, float], float]


@dataclass(frozen=True, slots=True)
class IntegerAnswer:
    """Stages of the units, None if none were found; `status` and `bound_s` as of a `MilpSolution`."""

    status: str
    stages: tuple[int, ...] | None
    bound_s: float


def solve_integer(
    problem: StageProblem,
    options: StageOptions,
    known: tuple[Sequence[int], Evaluation] | None,
) -> IntegerAnswer:
    """The best stages by branch and bound, beginning from known ones."""
    return _Program(problem, options, known).solve()


class _Program:
    """One program. Times are divided by `unit`, the most the slowest stage can take, so that all is around one."""

    def __init__(
        self, problem: StageProblem, options: StageOptions, known: tuple[Sequence[int], Evaluation] | None
    ) -> None:
        self.problem, self.options, self.known = problem, options, known
        self.milp = Milp()
        units, n = problem.units, problem.stages
        total = sum(u.forward_s + u.backward_s for u in units) / min(problem.speeds)
        arriving = sum(
            max(problem.seconds(net, a, b) for a in range(n) for b in range(n) if a != b) * len(net.readers)
            for net in problem.nets
            if n > 1
        )
        self.unit = min(slowest_allowed(problem, options), total + options.exposure * arriving) or 1.0
        if known is not None and problem.microbatches > 1:
            self.unit = min(self.unit, known[1].objective_s / (problem.microbatches - 1))
        self.slowest = self.milp.variable((problem.microbatches - 1) * self.unit)
        self.at_most = [[self.milp.variable(0.0, True) for _ in range(n - 1)] for _ in units]
        self.fixed_s = 0.0
        self._order()
        arriving_by_stage, copies = self._nets()
        self._loads(arriving_by_stage, copies)

    def _at(self, u: int, s: int) -> Linear:
        """Whether unit u is at stage s."""
        row, last = self.at_most[u], self.problem.stages - 1
        terms: dict[int, float] = {}
        if s < last:
            terms[row[s]] = 1.0
        if s > 0:
            terms[row[s - 1]] = -1.0
        return terms, 1.0 if s == last else 0.0

    def _row(self, low: float, high: float, parts: Sequence[tuple[float, Linear]]) -> None:
        terms: dict[int, float] = {}
        constant = 0.0
        for factor, (given, fixed) in parts:
            constant += factor * fixed
            for v, c in given.items():
                terms[v] = terms.get(v, 0.0) + factor * c
        self.milp.row(low - constant, high - constant, [(v, c) for v, c in terms.items() if c])

    def _order(self) -> None:
        for row in self.at_most:
            for earlier, later in pairwise(row):
                self.milp.row(0.0, inf, [(later, 1.0), (earlier, -1.0)])
        for u, v in self.problem.precedences:
            for first, second in zip(self.at_most[u], self.at_most[v], strict=True):
                self.milp.row(0.0, inf, [(first, 1.0), (second, -1.0)])
        for row, (first, last) in zip(self.at_most, self.problem.ranges, strict=True):
            for s, at_most in enumerate(row):
                if s < first or s >= last:
                    pinned = float(s >= last)
                    self.milp.row(pinned, pinned, [(at_most, 1.0)])
        for s in range(self.problem.stages):
            self._row(1.0, inf, [(1.0, self._at(u, s)) for u in range(len(self.at_most))])

    def _nets(self) -> tuple[list[list[tuple[int, float]]], list[list[tuple[int, float]]]]:
        """Variables and rows of what is sent; by stage, the seconds that arrive and the bytes of copies."""
        problem, n = self.problem, self.problem.stages
        arriving: list[list[tuple[int, float]]] = [[] for _ in range(n)]
        copies: list[list[tuple[int, float]]] = [[] for _ in range(n)]
        for net in problem.merged_nets:
            needed = [self.milp.variable(0.0) for _ in range(n)]
            for s in range(n):
                for u in net.readers:
                    # At least: a reader is here and the root is not.
                    self._row(
                        0.0, inf, [(1.0, ({needed[s]: 1.0}, 0.0)), (-1.0, self._at(u, s)), (1.0, self._at(net.root, s))]
                    )
                if net.kind == "shared":
                    copies[s].append((needed[s], float(net.nbytes)))
            if problem.uniform:
                for s in range(n):
                    self._pay(net, needed[s], problem.seconds(net, (s + 1) % n, s) if n > 1 else 0.0, s, arriving)
            else:
                self._routes(net, needed, arriving)
        return arriving, copies

    def _pay(self, net: Net, variable: int, seconds: float, s: int, arriving: list[list[tuple[int, float]]]) -> None:
        self.milp.costs[variable] += seconds
        if net.kind != "shared":
            arriving[s].append((variable, seconds))

    def _routes(self, net: Net, needed: list[int], arriving: list[list[tuple[int, float]]]) -> None:
        """With links that differ, where each stage gets the net from: the root's stage or another that reads it."""
        problem, n = self.problem, self.problem.stages
        for s in range(n):
            # No relays that do not read it, as in `net_seconds`.
            self._row(-inf, 0.0, [(1.0, ({needed[s]: 1.0}, 0.0)), *((-1.0, self._at(u, s)) for u in net.readers)])
            sources = []
            for c in range(n):
                if c == s or (net.kind == "forward" and c > s) or (net.kind == "backward" and c < s):
                    continue
                used = self.milp.variable(0.0)
                self._pay(net, used, problem.seconds(net, c, s), s, arriving)
                holds: list[tuple[float, Linear]] = [(-1.0, self._at(net.root, c))]
                if net.kind != "shared":
                    holds.append((-1.0, ({needed[c]: 1.0}, 0.0)))
                self._row(-inf, 0.0, [(1.0, ({used: 1.0}, 0.0)), *holds])
                sources.append((1.0, ({used: 1.0}, 0.0)))
            self._row(0.0, inf, [*sources, (-1.0, ({needed[s]: 1.0}, 0.0))])

    def _loads(self, arriving: list[list[tuple[int, float]]], copies: list[list[tuple[int, float]]]) -> None:
        problem, options = self.problem, self.options
        for s in range(problem.stages):
            speed = problem.speeds[s]
            parts: list[tuple[float, Linear]] = []
            for u, unit in enumerate(problem.units):
                seconds = (unit.forward_s + unit.backward_s) / speed
                terms, constant = self._at(u, s)
                self.fixed_s += seconds * constant
                for v, c in terms.items():
                    self.milp.costs[v] += seconds * c
                parts.append((seconds / self.unit, (terms, constant)))
            for v, seconds in arriving[s]:
                exposed = options.exposure * seconds
                self.milp.costs[v] += exposed
                if exposed:
                    parts.append((exposed / self.unit, ({v: 1.0}, 0.0)))
            self._row(-inf, 0.0, [*parts, (-1.0, ({self.slowest: 1.0}, 0.0))])
            limit = problem.memory_limits[s]
            if limit:
                memory = [
                    ((unit.static_bytes + problem.in_flight[s] * unit.activation_bytes) / limit, self._at(u, s))
                    for u, unit in enumerate(problem.units)
                ]
                memory += [(nbytes / limit, ({v: 1.0}, 0.0)) for v, nbytes in copies[s]]
                self._row(-inf, 1.0, memory)

    def solve(self) -> IntegerAnswer:
        """Runs the program; what is known is a start and a cutoff."""
        start: dict[int, float] | None = None
        cutoff = inf
        if self.known is not None:
            stages, evaluation = self.known
            start = {v: float(stages[u] <= t) for u, row in enumerate(self.at_most) for t, v in enumerate(row)}
            cutoff = (evaluation.objective_s - self.fixed_s) * (1 + self.options.gap)
        options = self.options
        found = self.milp.solve(options.time_limit_s, options.gap, start, cutoff=cutoff, work=options.work)
        if found.objective == inf:
            return IntegerAnswer(found.status, None, found.bound + self.fixed_s)
        stages = [sum(found.values[v] < 0.5 for v in row) for row in self.at_most]
        return IntegerAnswer(found.status, tuple(stages), found.bound + self.fixed_s)
