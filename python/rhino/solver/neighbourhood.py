"""The best choices of some decisions while the others stay: a mixed-integer program for HiGHS, its rows added late.

With all decisions free its bound is one of the whole problem. It must not know which decisions are worth freeing
(docs/design/solver.md, "Neighbourhoods").
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import highspy
import numpy as np

from rhino.deadline import Deadline
from rhino.solver.highs import SilentHighs, linear_program
from rhino.solver.model import Index, Model, PairTable
from rhino.solver.problem import Numbers
from rhino.solver.rows import Rows

# Rows of memory at first, and how many more after an answer that needs them.
_FIRST_ROWS = 150
_MORE_ROWS = 60
_ROUNDS = 12
_HUGE = 1e30
# Larger costs are divided: HiGHS's tolerances are absolute. Smaller ones stay whole numbers, of which it makes use.
_LARGEST = 1e9


@dataclass(frozen=True, slots=True)
class Found:
    """`choices` of all decisions, None if none were found; `bound` is of the free ones; `proved`: no better there."""

    choices: Index | None
    bound: float
    proved: bool


@dataclass(frozen=True, slots=True)
class Limits:
    """How far one program is searched: nodes of HiGHS's tree, its relative gap, and until when."""

    nodes: int
    gap: float
    deadline: Deadline


def best_of(model: Model, free: list[int], choices: Index, penalty: float, limits: Limits) -> Found:
    """The best choices of `free`, from `choices` on.

    Args:
      penalty: what memory above the room costs per byte; infinite for none above it.
    """
    program = _FreedProgram(model, free, choices, penalty)
    bound = -inf
    for _ in range(_ROUNDS):
        if limits.deadline.over():
            break
        answer, least, proved = program.solve(limits)
        bound = max(bound, least)
        if answer is None:
            return Found(None, bound, proved)
        more = program.missing(answer)
        if not more:
            return Found(answer, bound, proved)
        program.rows += more
    return Found(None, bound, False)


class _FreedProgram:
    """Choices of free decisions, cells of the pairs among them, and rows of memory over what the others leave."""

    def __init__(self, model: Model, free: list[int], choices: Index, penalty: float) -> None:
        self.model, self.free, self.start, self.penalty = model, free, choices, penalty
        costs = {node: model.costs[node].copy() for node in free}
        self.inner: list[PairTable] = []
        for number in dict.fromkeys(n for node in free for n in model.neighbours[node]):
            pair = model.pairs[number]
            if pair.left in costs and pair.right in costs:
                self.inner.append(pair)
            elif pair.left in costs:
                costs[pair.left] += pair.costs[:, pair.columns[choices[pair.right]]][pair.rows]
            else:
                costs[pair.right] += pair.costs[pair.rows[choices[pair.left]]][pair.columns]
        self.at = dict(zip(free, np.cumsum([0, *map(len, costs.values())])[:-1].tolist(), strict=True))
        self.costs = np.concatenate(list(costs.values()))
        self.uses = np.array([use for node in free for use in model.uses_of[node]], dtype=np.intp)
        self._memory()

    def _memory(self) -> None:
        """The stretches of time in which the same free uses are live, and the room that the other decisions leave."""
        model = self.model
        self.rows: list[int] = []
        if not len(self.uses):
            self.bounds, self.room = np.zeros(0, dtype=np.intp), np.zeros(0)
            return
        left = model.room - (model.profile(self.start) - model.profile(self.start, self.uses))
        bounds = np.unique(np.concatenate([model.first[self.uses], model.last[self.uses]]))
        self.bounds = bounds[bounds < len(model.room)]
        self.room = np.minimum.reduceat(left, self.bounds)
        most = np.array([model.usages[use].max() for use in self.uses])
        size = len(model.room) + 1
        change = np.bincount(model.first[self.uses], most, size) - np.bincount(model.last[self.uses], most, size)
        self.most = change.cumsum()[self.bounds]
        can = np.flatnonzero(self.most > self.room + model.tolerance)
        if len(can) > _FIRST_ROWS:
            ratio = self.room[can] / self.most[can]
            can = np.sort(can[np.argsort(ratio, kind="stable")[:_FIRST_ROWS]])
        self.rows = can.tolist()

    def missing(self, choices: Index) -> list[int]:
        """Rows that an answer breaks and that are not there: of each stretch that is too full the fullest slot."""
        if not len(self.bounds):
            return []
        over = self.model.profile(choices, self.uses)[self.bounds] - self.room
        over[self.rows] = 0.0
        bad = np.flatnonzero(over > self.model.tolerance)
        if not len(bad):
            return []
        groups = np.split(bad, np.flatnonzero(np.diff(bad) > 1) + 1)
        peaks = [int(group[over[group].argmax()]) for group in groups]
        return sorted(sorted(peaks, key=lambda row: (-over[row], row))[:_MORE_ROWS])

    def solve(self, limits: Limits) -> tuple[Index | None, float, bool]:
        """An answer under the rows that are there, the bound, and whether the answer is the best."""
        lp, scale, start = self._program()
        highs = SilentHighs()
        # Presolve takes as long as the rest, and HiGHS 1.16 was seen to go round in it without an end.
        for option, value in (
            ("output_flag", False), ("presolve", "off"), ("threads", 1), ("random_seed", 0),
            ("mip_max_nodes", limits.nodes), ("mip_rel_gap", limits.gap),
            ("time_limit", limits.deadline.at_most(inf)),
        ):  # fmt: skip
            highs.setOptionValue(option, value)
        highs.passModel(lp)
        solution = highspy.HighsSolution()
        solution.col_value = start.tolist()
        highs.setSolution(solution)
        highs.run()
        told = highs.getInfo().objective_function_value
        given = float(np.asarray(lp.col_cost_) @ np.asarray(highs.getSolution().col_value or start))
        if told < given - 1e-9 * abs(given):
            # As in `rhino.sharding.milp`: HiGHS 1.16 may say what a better answer costs, and hand the start back.
            highs.passModel(lp)
            highs.run()
        status, info = highs.getModelStatus(), highs.getInfo()
        proved = status in (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kInfeasible)
        bound = info.mip_dual_bound * scale if abs(info.mip_dual_bound) < _HUGE else -inf
        if status == highspy.HighsModelStatus.kInfeasible:
            return None, inf, True
        # Tolerances of the relaxation: a bound is kept 1e-9 of it below what HiGHS says.
        bound -= 1e-9 * abs(bound)
        if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return None, bound, False
        values = np.array(highs.getSolution().col_value)
        answer = self.start.copy()
        for node in self.free:
            at = self.at[node]
            answer[node] = values[at : at + len(self.model.costs[node])].argmax()
        return answer, bound, proved

    def _program(self) -> tuple[highspy.HighsLp, float, Numbers]:
        """The program in HiGHS's form, by what its costs were divided, and the start as values of its columns."""
        model, rows = self.model, Rows()
        costs, start = [self.costs], [np.zeros(len(self.costs))]
        for node in self.free:
            start[0][self.at[node] + self.start[node]] = 1.0
            own = np.arange(self.at[node], self.at[node] + len(model.costs[node]))
            rows.add_sum(1.0, 1.0, own.tolist())
        columns = len(self.costs)
        for pair in self.inner:
            high, wide = pair.costs.shape
            cells = np.arange(columns, columns + high * wide).reshape(high, wide)
            columns += high * wide
            costs.append(pair.costs.ravel())
            taken = np.zeros((high, wide))
            taken[pair.rows[self.start[pair.left]], pair.columns[self.start[pair.right]]] = 1.0
            start.append(taken.ravel())
            for node, classes, sums in ((pair.left, pair.rows, cells), (pair.right, pair.columns, cells.T)):
                for number, line in enumerate(sums):
                    own = self.at[node] + np.flatnonzero(classes == number)
                    rows.add_sum(0.0, 0.0, line.tolist(), own.tolist())
        unit = max(1.0, float(np.abs(self.most[self.rows]).max(initial=1.0)) / 1000) if self.rows else 1.0
        soft = self.penalty < inf
        now = model.profile(self.start, self.uses) if len(self.uses) else np.zeros(0)
        first, last = model.first[self.uses], model.last[self.uses]
        for row in self.rows:
            slot = self.bounds[row]
            live = self.uses[(first <= slot) & (slot < last)]
            own, used = self._terms(live)
            if soft:
                own, used = np.append(own, columns), np.append(used, -unit)
                columns += 1
                costs.append(np.array([self.penalty * unit]))
                start.append(np.array([max(0.0, now[slot] - self.room[row]) / unit]))
            rows.add(-inf, self.room[row] / unit, zip(own.tolist(), (used / unit).tolist(), strict=True))
        cost = np.concatenate(costs)
        never = ~np.isfinite(cost)
        cost[never] = 0.0
        scale = float(np.median(cost[cost > 0])) if cost.max() > _LARGEST else 1.0
        upper = np.ones(columns)
        if soft:
            upper[columns - len(self.rows) :] = inf
        upper[never] = 0.0
        lp = linear_program(cost / scale, upper, rows.lows, rows.highs, rows.starts, rows.indices, rows.coefficients)
        whole, part = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
        lp.integrality_ = [whole] * len(self.costs) + [part] * (columns - len(self.costs))
        return lp, scale, np.concatenate(start)

    def _terms(self, live: Index) -> tuple[Index, Numbers]:
        """What live uses take, by column: one entry per choice that takes any."""
        model, sums = self.model, dict[int, Numbers]()
        for use in live.tolist():
            node = int(model.owner[use])
            sums[node] = sums[node] + model.usages[use] if node in sums else model.usages[use]
        if not sums:
            return np.zeros(0, dtype=np.intp), np.zeros(0)
        own = np.concatenate([np.arange(len(used)) + self.at[node] for node, used in sums.items()])
        used = np.concatenate(list(sums.values()))
        return own[used > 0], used[used > 0]
