"""A small mixed-integer program, rows built one by one, solved by HiGHS.

Owns the solver's interface: problem in, solution out, status explicit, nothing printed, one thread, fixed seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

import highspy
import numpy as np

_OPTIMAL = highspy.HighsModelStatus.kOptimal
# How far from its optimum the multiplier of the penalty is moved to each side, as a share of its slope.
_NUDGE = 1e-4
# Relaxations with more columns go to the interior-point solver. Those are of several axes; measured on ones of 100,000
# columns it is twice as fast as the simplex method, on 180,000 four times, and on 60,000 of one axis five times slower.
_MANY = 90_000
# A variable the relaxation uses at all.
_USED = 1e-6


@dataclass(frozen=True, slots=True)
class MilpSolution:
    """`status` is "optimal", "limit" (best found in time), "infeasible", or "hopeless" (the bound is above the cutoff).

    `bound` is proved below the objective.
    """

    status: str
    objective: float
    bound: float
    values: tuple[float, ...]


@dataclass(slots=True)
class Milp:
    """Minimise `cost . x + slope * max(0, p . x)` subject to rows `low <= a . x <= high` and `0 <= x <= 1`.

    The penalty `(slope, p)` is optional.
    """

    costs: list[float] = field(default_factory=list)
    integers: list[bool] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    indices: list[int] = field(default_factory=list)
    coefficients: list[float] = field(default_factory=list)
    lows: list[float] = field(default_factory=list)
    highs: list[float] = field(default_factory=list)
    penalty: tuple[float, dict[int, float]] | None = None

    def variable(self, cost: float, integer: bool = False) -> int:
        """A new variable in [0, 1]; its index."""
        self.costs.append(cost)
        self.integers.append(integer)
        return len(self.costs) - 1

    def row(self, low: float, high: float, terms: Iterable[tuple[int, float]]) -> None:
        """A new constraint over (variable, coefficient) terms."""
        for index, coefficient in terms:
            self.indices.append(index)
            self.coefficients.append(coefficient)
        self.starts.append(len(self.indices))
        self.lows.append(low)
        self.highs.append(high)

    def solve(
        self,
        time_limit_s: float = 60.0,
        gap: float = 1e-6,
        start: Mapping[int, float] | None = None,
        prove: bool = True,
        cutoff: float = inf,
    ) -> MilpSolution:
        """Solve: the LP relaxation first, branching only where it is fractional and rounding is not close enough.

        Args:
          gap: how far above the optimum, relatively, an integer answer may be.
          start: values of the integer variables of a known answer, to begin branching with.
          prove: branch until the gap is reached; else only among what the relaxation uses, which takes a fraction of
            the time and seldom misses anything.
          cutoff: answers above it do not matter.
        """
        if not self.costs:  # HiGHS calls it "empty", not optimal
            return MilpSolution("optimal", 0.0, 0.0, ())
        return _Solver(self, time_limit_s, gap).run(start, prove, cutoff)


class _Solver:
    """One program in HiGHS. Its last column, if there is a penalty, is what the penalty exceeds zero by."""

    def __init__(self, milp: Milp, time_limit_s: float, gap: float) -> None:
        self.milp, self.gap = milp, gap
        self.costs = np.array(milp.costs)
        self.integers = np.array(milp.integers)
        self.slope, excess = milp.penalty or (0.0, {})
        self.unit = max(map(abs, excess.values()), default=0.0) or 1.0
        self.excess = np.zeros(len(milp.costs))
        self.excess[list(excess)] = [c / self.unit for c in excess.values()]
        largest = max(np.abs(self.costs).max(), self.slope * self.unit)
        # Seconds are tiny numbers: HiGHS's absolute tolerances want costs around one.
        self.scale = 1.0 / largest if largest > 0 else 1.0
        self.highs = highspy.Highs()
        for option, value in (
            ("output_flag", False), ("threads", 1), ("random_seed", 0), ("mip_rel_gap", gap),
            ("mip_abs_gap", 1e-9), ("time_limit", time_limit_s), ("parallel", "off"),
            ("dual_feasibility_tolerance", 1e-9), ("primal_feasibility_tolerance", 1e-9),
            # Measured on programs of 60,000 columns: as fast at its best, and twice as fast at its worst, without.
            ("presolve", "off"),
        ):  # fmt: skip
            self.highs.setOptionValue(option, value)
        self.lp = self._program()
        self.highs.passModel(self.lp)

    def _program(self) -> Any:
        milp = self.milp
        lp = highspy.HighsLp()
        costs, starts, indices = self.costs * self.scale, milp.starts, np.array(milp.indices, dtype=np.int32)
        coefficients, highs = np.array(milp.coefficients), np.ones(len(costs))
        lows, tops = np.array(milp.lows), np.array(milp.highs)
        if milp.penalty is not None:
            # z >= p . x / unit, as the last row and column.
            at = np.flatnonzero(self.excess)
            costs, highs = np.append(costs, self.slope * self.unit * self.scale), np.append(highs, inf)
            indices = np.concatenate([indices, at, [len(self.costs)]]).astype(np.int32)
            coefficients = np.concatenate([coefficients, -self.excess[at], [1.0]])
            starts = [*starts, len(indices)]
            lows, tops = np.append(lows, 0.0), np.append(tops, inf)
        lp.num_col_, lp.num_row_ = len(costs), len(lows)
        lp.col_cost_, lp.col_lower_, lp.col_upper_ = costs, np.zeros(len(costs)), highs
        lp.row_lower_, lp.row_upper_ = lows, tops
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.array(starts, dtype=np.int32)
        lp.a_matrix_.index_ = indices
        lp.a_matrix_.value_ = coefficients
        return lp

    def run(self, start: Mapping[int, float] | None, prove: bool, cutoff: float) -> MilpSolution:
        self.highs.setOptionValue("solver", "ipm" if len(self.costs) > _MANY else "choose")
        self.highs.run()
        self.highs.setOptionValue("solver", "choose")
        if self.highs.getModelStatus() != _OPTIMAL:
            return MilpSolution("infeasible", inf, inf, ())
        values = self._values()
        bound = self._objective(values)
        if bound > cutoff:
            return MilpSolution("hopeless", inf, bound, ())
        if not self._fractional(values):
            return MilpSolution("optimal", bound, bound, tuple(values))
        rounded = self._either_side()
        if rounded is not None:
            objective = self._objective(rounded)
            if objective <= bound * (1 + self.gap):
                return MilpSolution("optimal", objective, bound, tuple(rounded))
            if start is None or objective < self._objective_of(start):
                start = {int(i): float(rounded[i]) for i in np.flatnonzero(self.integers)}
        # Relaxation-enforced neighbourhood search: the program without what the relaxation leaves at zero.
        used = (values > _USED) | ~self.integers
        if start is not None:
            used[[i for i, v in start.items() if v > 0.5]] = True
        near = self._branch(start, bound, used)
        if near.objective <= bound * (1 + self.gap) or (not prove and near.status != "infeasible"):
            return near
        if near.status != "infeasible":
            start = {int(i): near.values[i] for i in np.flatnonzero(self.integers)}
        return self._branch(start, bound, np.ones(len(self.costs), dtype=bool))

    def _objective_of(self, start: Mapping[int, float]) -> float:
        """A bound from below of a start whose continuous variables are not known: enough to prefer a rounding."""
        values = np.zeros(len(self.costs))
        values[list(start)] = list(start.values())
        return self._objective(values)

    def _values(self) -> Any:
        return np.array(self.highs.getSolution().col_value)[: len(self.costs)]

    def _objective(self, values: Any) -> float:
        return float(self.costs @ values + self.slope * self.unit * max(0.0, self.excess @ values))

    def _fractional(self, values: Any) -> bool:
        parts = values[self.integers]
        return bool(np.any((parts > 1e-6) & (parts < 1 - 1e-6)))

    def _either_side(self) -> Any:
        """An integer answer near the kink of the penalty, where the relaxation mixes one from each side of it.

        With the penalty priced by its multiplier instead of bounded by a row, the program is mostly integral.
        """
        if self.milp.penalty is None:
            return None
        multiplier = self.highs.getSolution().row_dual[len(self.milp.lows)] / self.scale / self.unit
        best = None
        columns = np.arange(len(self.costs), dtype=np.int32)
        basis = self.highs.getBasis()
        # Free of its row, the excess is priced in the objective.
        self.highs.changeColCost(len(self.costs), 0.0)
        for side in (-1, 1):
            price = min(self.slope, max(0.0, multiplier + side * _NUDGE * self.slope))
            costs = (self.costs + price * self.unit * self.excess) * self.scale
            self.highs.changeColsCost(len(columns), columns, costs)
            self.highs.setBasis(basis)
            self.highs.run()
            values = self._values()
            if self.highs.getModelStatus() == _OPTIMAL and not self._fractional(values):
                best = values if best is None or self._objective(values) < self._objective(best) else best
        return best

    def _branch(self, start: Mapping[int, float] | None, bound: float, allowed: Any) -> MilpSolution:
        kinds = [highspy.HighsVarType.kInteger if i else highspy.HighsVarType.kContinuous for i in self.integers]
        if self.milp.penalty is not None:
            kinds.append(highspy.HighsVarType.kContinuous)
        self.lp.integrality_ = kinds
        self.highs.setOptionValue("presolve", "choose")
        highs = np.where(allowed, 1.0, 0.0)
        self.lp.col_upper_ = highs if self.milp.penalty is None else np.append(highs, inf)
        self.highs.passModel(self.lp)
        if start:
            self.highs.setSolution(len(start), np.array(list(start), dtype=np.int32), np.array(list(start.values())))
        self.highs.run()
        info = self.highs.getInfo()
        if info.primal_solution_status != 2:
            return MilpSolution("infeasible", inf, inf, ())
        values = self._values()
        status = "optimal" if self.highs.getModelStatus() == _OPTIMAL else "limit"
        if allowed.all():
            bound = max(bound, info.mip_dual_bound / self.scale)
        return MilpSolution(status, self._objective(values), bound, tuple(values))
