"""A small mixed-integer program, rows built one by one, solved by HiGHS.

Owns the solver's interface: problem in, solution out, status explicit, nothing printed, one thread, fixed seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from math import inf
from typing import Any

import highspy
import numpy as np

from rhino.sharding.fixing import Matrix, without
from rhino.solver.highs import SilentHighs, linear_program
from rhino.solver.planes import Prices, highest
from rhino.solver.rows import Rows

_OPTIMAL, _INFEASIBLE = highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kInfeasible
# How much is branched at most, in nodes times columns. Programs of models have needed one node.
_WORK = 5_000_000
# How close to its largest value the relaxation's price is brought, as a share of the gap that is wanted.
_CLOSE = 0.1
# Relaxations with more columns go to the interior-point solver. Those are of several axes; measured on ones of 100,000
# columns it is twice as fast as the simplex method, on 180,000 four times, and on 60,000 of one axis five times slower.
_MANY = 90_000
# Relaxations with more columns are solved without perturbed costs: those of U-Nets, of 20,000 to 50,000, in two thirds
# of the time, others in about the same. In small ones it saves nothing.
_LARGE = 10_000
# Relaxations with more columns are not solved at the highest price where a known answer says enough about it: in
# programs of two axes that takes as long as all other prices together. In small ones it saves little.
FAR = 50_000
# By how much a known answer may miss a row.
_MET = 1e-7
# A variable the relaxation uses at all.
_USED = 1e-6


# By prices, where the relaxation's optimum was found.
Bases = dict[Prices, Any]


@dataclass(frozen=True, slots=True)
class MilpSolution:
    """`status` is "optimal", "limit" (the best found when the search ended, without values if there was none),
    "infeasible", or "hopeless" (the bound is above the cutoff).

    `bound` is proved below the objective.
    """

    status: str
    objective: float
    bound: float
    values: tuple[float, ...]


@dataclass(slots=True)
class Milp:
    """Minimise `cost . x + sum over p of max(0, p . x)` subject to `rows` and `0 <= x <= 1`.

    The `penalties` are the `p`, by variable; there may be none.
    """

    costs: list[float] = field(default_factory=list)
    integers: list[bool] = field(default_factory=list)
    rows: Rows = field(default_factory=Rows)
    penalties: list[dict[int, float]] = field(default_factory=list)
    _matrix: Matrix | None = field(default=None, init=False, repr=False, compare=False)

    def variable(self, cost: float, integer: bool = False) -> int:
        """A new variable in [0, 1]; its index."""
        self.costs.append(cost)
        self.integers.append(integer)
        return len(self.costs) - 1

    def variables(self, count: int) -> range:
        """New variables in [0, 1] that cost nothing."""
        before = len(self.costs)
        self.costs.extend([0.0] * count)
        self.integers.extend([False] * count)
        return range(before, before + count)

    def row(self, low: float, high: float, terms: Iterable[tuple[int, float]]) -> None:
        """A new constraint over (variable, coefficient) terms."""
        self.rows.add(low, high, terms)

    def shape(self) -> bytes:
        """The same for programs that differ in costs only."""
        rows = self.matrix()
        sizes = len(self.costs), len(rows.lows), len(rows.columns), len(self.penalties)
        text = blake2b(repr(sizes).encode())
        for numbers in (rows.starts, rows.columns, rows.coefficients, rows.lows, rows.highs):
            text.update(numbers.data)
        text.update(bytes(self.integers))
        return text.digest()

    def matrix(self) -> Matrix:
        """The rows as arrays."""
        rows = self.rows
        if self._matrix is None or len(self._matrix.lows) < len(rows.lows):
            self._matrix = Matrix.of(rows.starts, rows.indices, rows.coefficients, rows.lows, rows.highs)
        return self._matrix

    def digest(self, gap: float, start: Mapping[int, float], prove: bool, cutoff: float, shape: bytes = b"") -> bytes:
        """The same for programs that are equal number by number and are solved alike, different for all others.

        Args:
          shape: the program's, where it is known.
        """
        given = [*self.penalties, start]
        text = blake2b(shape or self.shape())
        text.update(repr((gap, prove, cutoff, *map(len, given))).encode())
        for numbers in given:
            text.update(np.array(list(numbers), dtype=np.int64).data)
        for values in (self.costs, *(list(numbers.values()) for numbers in given)):
            text.update(np.array(values, dtype=np.float64).data)
        return text.digest()

    def solve(
        self,
        time_limit_s: float = inf,
        gap: float = 1e-6,
        start: Mapping[int, float] | None = None,
        prove: bool = True,
        cutoff: float = inf,
        bases: Bases | None = None,
        work: int = _WORK,
    ) -> MilpSolution:
        """Solve: the LP relaxation first, branching only where it is fractional and rounding is not close enough.

        Args:
          time_limit_s: what is left of a budget; with none the answer is the same on every machine.
          gap: how far above the optimum, relatively, an integer answer may be.
          start: values of a known answer, of the integer variables at least, to begin branching with. Where all that
            are not zero are there, its cost also says where to look for the relaxation's price.
          prove: branch until the gap is reached; else only among what the relaxation uses, which takes a fraction of
            the time and seldom misses anything.
          cutoff: answers above it do not matter.
          bases: of the relaxations of a program of this shape, to begin its own with; they are replaced by its own.
          work: how much is branched at most, in nodes times columns.
        """
        if not self.costs:  # HiGHS calls it "empty", not optimal
            return MilpSolution("optimal", 0.0, 0.0, ())
        return _Solver(self, time_limit_s, gap, {} if bases is None else bases, work).run(start, prove, cutoff)


@dataclass(frozen=True, slots=True)
class _Answer:
    """The optimum at some prices: what it costs without penalties, and what each exceeds zero by, in seconds."""

    values: Any
    prices: Prices
    shown: float
    over: Prices

    @property
    def value(self) -> float:
        return self.at(self.prices)

    def at(self, prices: Prices) -> float:
        """What this answer costs at other prices."""
        return self.shown + sum(price * over for price, over in zip(prices, self.over, strict=True))


@dataclass(frozen=True, slots=True)
class _Relaxed:
    """A bound from below, the columns that the relaxation uses, and the best integer answer seen on the way."""

    bound: float
    used: Any
    best: Any


class _Solver:
    """One program in HiGHS. Penalties are priced in the objective, and rows only where branching needs them."""

    def __init__(self, milp: Milp, time_limit_s: float, gap: float, bases: Bases, work: int) -> None:
        self.milp, self.gap, self.work = milp, gap, work
        self.others, self.bases = dict(bases), bases
        self.last: Prices | None = None
        bases.clear()
        self.costs = np.array(milp.costs)
        self.integers = np.array(milp.integers)
        self.rows = milp.matrix()
        self.units = [max(map(abs, excess.values()), default=0.0) or 1.0 for excess in milp.penalties]
        self.excesses = [np.zeros(len(milp.costs)) for _ in milp.penalties]
        for excess, unit, found in zip(milp.penalties, self.units, self.excesses, strict=True):
            found[list(excess)] = [c / unit for c in excess.values()]
        largest = max(np.abs(self.costs).max(), *self.units, 0.0)
        # Seconds are tiny numbers: HiGHS's absolute tolerances want costs around one.
        self.scale = 1.0 / largest if largest > 0 else 1.0
        self.highs = SilentHighs()
        for option, value in (
            ("output_flag", False), ("threads", 1), ("random_seed", 0), ("mip_rel_gap", gap),
            ("mip_abs_gap", 1e-9), ("time_limit", time_limit_s), ("parallel", "off"),
            ("dual_feasibility_tolerance", 1e-9), ("primal_feasibility_tolerance", 1e-9),
            # Measured on programs of 60,000 columns: as fast at its best, and twice as fast at its worst, without.
            ("presolve", "off"),
        ):  # fmt: skip
            self.highs.setOptionValue(option, value)
        if len(milp.costs) > _LARGE:
            self.highs.setOptionValue("dual_simplex_cost_perturbation_multiplier", 0.0)

    def _program(self, rows: Matrix, kept: Any, penalised: bool) -> Any:
        """The program of the columns `kept` for HiGHS, `penalised` with more: what each penalty exceeds zero by.

        Args:
          rows: over the kept columns alone.
        """
        costs, highs = self.costs[kept] * self.scale, np.ones(len(kept))
        for whole, unit in zip(self.excesses, self.units, strict=True) if penalised else ():
            # z >= p . x / unit, as the last row and column.
            excess = whole[kept]
            at = np.flatnonzero(excess)
            rows = rows.with_row(0.0, inf, [*at, len(costs)], [*-excess[at], 1.0])
            costs, highs = np.append(costs, unit * self.scale), np.append(highs, inf)
        return linear_program(costs, highs, rows.lows, rows.highs, rows.starts, rows.columns, rows.coefficients)

    def run(self, start: Mapping[int, float] | None, prove: bool, cutoff: float) -> MilpSolution:
        """Relaxes, and branches where no answer of the relaxation is close enough."""
        relaxed = self._relaxed(cutoff, self._known(start) if start and len(self.costs) > FAR else None)
        if relaxed is None:
            return self._nothing(-inf)
        bound, rounded = relaxed.bound, relaxed.best
        if bound > cutoff:
            return MilpSolution("hopeless", inf, bound, ())
        if rounded is not None:
            objective = self._objective(rounded)
            if objective <= bound * (1 + self.gap):
                return MilpSolution("optimal", objective, min(bound, objective), tuple(rounded.tolist()))
            if start is None or objective < self._objective_of(start):
                start = {int(i): float(rounded[i]) for i in np.flatnonzero(self.integers)}
        # Relaxation-enforced neighbourhood search: the program without what the relaxation leaves at zero.
        used = relaxed.used | ~self.integers
        if start is not None:
            used[[i for i, v in start.items() if v > 0.5]] = True
        near = self._branch(start, bound, used)
        if used.all() or near.objective <= bound * (1 + self.gap) or (not prove and near.values):
            return near
        if near.values:
            start = {int(i): near.values[i] for i in np.flatnonzero(self.integers)}
        return self._branch(start, bound, np.ones(len(self.costs), dtype=bool))

    def _known(self, start: Mapping[int, float]) -> _Answer | None:
        """A start as an answer; None where its rows need variables that it does not have."""
        values = np.zeros(len(self.costs))
        values[list(start)] = list(start.values())
        rows = self.rows
        of_row = np.repeat(np.arange(len(rows.lows)), np.diff(rows.starts))
        sums = np.bincount(of_row, rows.coefficients * values[rows.columns], minlength=len(rows.lows))
        met = np.all(sums >= rows.lows - _MET) and np.all(sums <= rows.highs + _MET)
        return self._answer(values, self._dearest) if met else None

    @property
    def _dearest(self) -> Prices:
        return (1.0,) * len(self.units)

    def _relaxed(self, cutoff: float, known: _Answer | None) -> _Relaxed | None:
        """The relaxation, at least until what it says is clear; None if it is infeasible.

        Of all prices between 0 and 1 a penalty is the dearest. At fixed prices the program has no row that
        joins all columns, is solved several times faster, and its answer is mostly integral. Its optimum is concave in
        the prices, and at its highest that of the relaxation (Lagrangian duality): every answer is a plane above it,
        and the next prices are where the lowest of these planes is highest (Kelley's cutting planes). The plane of a
        known answer may stand for that at the highest prices, which takes longest.
        """
        self.highs.passModel(self._program(self.rows, np.arange(len(self.costs)), penalised=False))
        self.highs.setOptionValue("solver", "ipm" if len(self.costs) > _MANY and not self.others else "choose")
        low = self._at((0.0,) * len(self.units))
        self.highs.setOptionValue("solver", "choose")
        if low is None:
            return None
        seen = [low]
        if all(over <= 0 for over in low.over) or self._clear(seen, cutoff):
            return self._summary(seen, (low,))
        # Where the planes cross beyond the dearest, the top is there, or before.
        dearest = self._dearest
        high = known if known is not None and known.value <= low.at(dearest) else self._at(dearest)
        if high is None:
            return None
        if high is not known:
            seen.append(high)
        if all(over >= 0 for over in high.over):
            return self._summary(seen, (high,))
        planes = [low, high]
        while not self._clear(seen, cutoff):
            prices, top = highest(planes, len(self.units))
            found = self._at(prices)
            if found is None:
                return None
            seen.append(found)
            planes.append(found)
            if found.value >= top - _CLOSE * self.gap * abs(top):
                break
        prices, top = highest(planes, len(self.units))
        return self._summary(seen, [p for p in planes if p.at(prices) <= top + _CLOSE * self.gap * abs(top)])

    def _at(self, prices: Prices) -> _Answer | None:
        """The optimum of the relaxation with these prices per unit of each penalty.

        Begins where the last one ended, or where another program's of nearer prices did.
        """

        def distance(other: Prices | None) -> float:
            return inf if other is None else sum(abs(a - b) for a, b in zip(other, prices, strict=True))

        near = min(self.others, key=distance, default=None)
        if near is not None and distance(near) < distance(self.last):
            self.highs.setBasis(self.others[near])
        columns = np.arange(len(self.costs), dtype=np.int32)
        penalised = sum(
            price * unit * excess for price, unit, excess in zip(prices, self.units, self.excesses, strict=True)
        )
        priced = (self.costs + penalised) * self.scale
        self.highs.changeColsCost(len(columns), columns, priced)
        self.highs.run()
        if self.highs.getModelStatus() != _OPTIMAL:
            return None
        self.last, self.bases[prices] = prices, self.highs.getBasis()
        return self._answer(np.array(self.highs.getSolution().col_value), prices)

    def _nothing(self, bound: float) -> MilpSolution:
        """That there is no answer, or that the search ended before there was one."""
        proved = self.highs.getModelStatus() == _INFEASIBLE
        return MilpSolution("infeasible", inf, inf, ()) if proved else MilpSolution("limit", inf, bound, ())

    def _answer(self, values: Any, prices: Prices) -> _Answer:
        return _Answer(values, prices, _dot(self.costs, values), self._over(values))

    def _over(self, values: Any) -> Prices:
        """What each penalty is."""
        return tuple([unit * _dot(excess, values) for unit, excess in zip(self.units, self.excesses, strict=True)])

    def _clear(self, seen: Sequence[_Answer], cutoff: float) -> bool:
        """Whether the bound is above the cutoff already, or an integer answer close enough to it."""
        known = self._summary(seen, seen)
        objective = inf if known.best is None else self._objective(known.best)
        return known.bound > cutoff or objective <= known.bound * (1 + self.gap)

    def _summary(self, seen: Sequence[_Answer], ends: Sequence[_Answer]) -> _Relaxed:
        """What these answers say; the relaxation's optimum mixes those of `ends`."""
        whole = [answer.values for answer in seen if not self._fractional(answer.values)]
        used = np.any([answer.values > _USED for answer in ends], axis=0)
        return _Relaxed(max(answer.value for answer in seen), used, min(whole, key=self._objective, default=None))

    def _objective_of(self, start: Mapping[int, float]) -> float:
        """A bound from below of a start whose continuous variables are not known: enough to prefer a rounding."""
        values = np.zeros(len(self.costs))
        values[list(start)] = list(start.values())
        return self._objective(values)

    def _objective(self, values: Any) -> float:
        return _dot(self.costs, values) + sum(max(0.0, over) for over in self._over(values))

    def _fractional(self, values: Any) -> bool:
        parts = values[self.integers]
        return bool(np.any((parts > 1e-6) & (parts < 1 - 1e-6)))

    def _values(self, kept: Any) -> Any:
        values = np.zeros(len(self.costs))
        values[kept] = np.array(self.highs.getSolution().col_value)[: len(kept)]
        return values

    def _branch(self, start: Mapping[int, float] | None, bound: float, allowed: Any) -> MilpSolution:
        rows, kept = without(self.rows, ~allowed) if not allowed.all() else (self.rows, np.arange(len(self.costs)))
        lp = self._program(rows, kept, penalised=True)
        integer, continuous = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
        kinds = [integer if whole else continuous for whole in self.integers[kept].tolist()]
        lp.integrality_ = [*kinds, *[continuous] * len(self.units)]
        self.highs.setOptionValue("presolve", "choose")
        self.highs.passModel(lp)
        self.highs.setOptionValue("mip_max_nodes", max(1, self.work // len(kept)))
        if start:
            place = {column: i for i, column in enumerate(kept.tolist())}
            known = {place[i]: value for i, value in start.items() if i in place}
            self.highs.setSolution(len(known), np.array(list(known), dtype=np.int32), np.array(list(known.values())))
        self.highs.run()
        info = self.highs.getInfo()
        if info.primal_solution_status != 2:
            return self._nothing(bound)
        values = self._values(kept)
        told = info.objective_function_value / self.scale
        if start and self._objective(values) > told + self.gap * abs(told):
            # HiGHS 1.16 may find a better answer than the start, say what it costs, and hand the start back.
            self.highs.passModel(lp)
            self.highs.run()
            info, values = self.highs.getInfo(), self._values(kept)
        status = "optimal" if self.highs.getModelStatus() == _OPTIMAL else "limit"
        if allowed.all():
            bound = max(bound, info.mip_dual_bound / self.scale)
        return MilpSolution(status, self._objective(values), bound, tuple(values.tolist()))


def _dot(a: Any, b: Any) -> float:
    """Their inner product, without BLAS: it wakes threads that then spin for milliseconds."""
    return float((a * b).sum())
