"""A small mixed-integer program, rows built one by one, solved by HiGHS.

Owns the solver's interface: problem in, solution out, status explicit, nothing printed, one thread, fixed seed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

import highspy
import numpy as np


@dataclass(frozen=True, slots=True)
class MilpSolution:
    """`status` is "optimal", "limit" (best found in time) or "infeasible"; `bound` is proved below the objective."""

    status: str
    objective: float
    bound: float
    values: tuple[float, ...]


@dataclass(slots=True)
class Milp:
    """Minimise cost . x subject to rows `low <= a . x <= high` and `0 <= x <= 1`."""

    costs: list[float] = field(default_factory=list)
    integers: list[bool] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    indices: list[int] = field(default_factory=list)
    coefficients: list[float] = field(default_factory=list)
    lows: list[float] = field(default_factory=list)
    highs: list[float] = field(default_factory=list)

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

    def solve(self, time_limit_s: float = 60.0) -> MilpSolution:
        """Solve: the LP relaxation first, branching only where it is fractional (HiGHS does both)."""
        if not self.costs:  # HiGHS calls it "empty", not optimal
            return MilpSolution("optimal", 0.0, 0.0, ())
        largest = max((abs(c) for c in self.costs), default=0.0)
        # Seconds are tiny numbers: HiGHS's absolute tolerances want costs around one.
        scale = 1.0 / largest if largest > 0 else 1.0
        lp = highspy.HighsLp()
        count, rows = len(self.costs), len(self.lows)
        lp.num_col_, lp.num_row_ = count, rows
        lp.col_cost_ = np.array(self.costs) * scale
        lp.col_lower_, lp.col_upper_ = np.zeros(count), np.ones(count)
        lp.row_lower_, lp.row_upper_ = np.array(self.lows), np.array(self.highs)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.array(self.starts, dtype=np.int32)
        lp.a_matrix_.index_ = np.array(self.indices, dtype=np.int32)
        lp.a_matrix_.value_ = np.array(self.coefficients)
        solver = highspy.Highs()
        for option, value in (
            ("output_flag", False), ("threads", 1), ("random_seed", 0), ("mip_rel_gap", 1e-6),
            ("mip_abs_gap", 1e-9), ("time_limit", time_limit_s), ("parallel", "off"),
            ("dual_feasibility_tolerance", 1e-9), ("primal_feasibility_tolerance", 1e-9),
        ):  # fmt: skip
            solver.setOptionValue(option, value)
        solver.passModel(lp)
        solver.run()
        values = tuple(solver.getSolution().col_value)
        status = solver.getModelStatus()
        if status == highspy.HighsModelStatus.kOptimal and not self._fractional(values):
            objective = solver.getInfo().objective_function_value / scale
            return MilpSolution("optimal", objective, objective, values)
        if status != highspy.HighsModelStatus.kOptimal:
            return MilpSolution("infeasible", inf, inf, ())
        bound = solver.getInfo().objective_function_value / scale
        kinds = [
            highspy.HighsVarType.kInteger if integer else highspy.HighsVarType.kContinuous for integer in self.integers
        ]
        lp.integrality_ = kinds
        solver.passModel(lp)
        solver.run()
        info = solver.getInfo()
        if info.primal_solution_status != 2:
            return MilpSolution("infeasible", inf, inf, ())
        optimal = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
        return MilpSolution(
            "optimal" if optimal else "limit",
            info.objective_function_value / scale,
            max(bound, info.mip_dual_bound / scale),
            tuple(solver.getSolution().col_value),
        )

    def _fractional(self, values: tuple[float, ...]) -> bool:
        return any(i and 1e-6 < v < 1 - 1e-6 for i, v in zip(self.integers, values, strict=True))
