"""The solver of choices: reduces a problem, bounds it, finds an answer that fits, and improves it.

Small problems are one program for HiGHS; large ones are searched by neighbourhoods. All is counted, not timed: a
deadline only cuts it short. It must not know files or where problems come from (docs/design/solver.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import inf

import numpy as np

from rhino.deadline import NEVER, Deadline
from rhino.errors import RhinoError
from rhino.solver.descent import descend
from rhino.solver.messages import relax
from rhino.solver.model import Index, Model
from rhino.solver.neighbourhood import Limits, best_of
from rhino.solver.problem import ChoiceProblem, Numbers
from rhino.solver.reduce import reduce_problem
from rhino.solver.surroundings import AT_ONCE, Surroundings, blame

# Cells of pairs and choices that one program of a neighbourhood has at first, and the whole problem for one program.
_NEAR_CELLS = 6_000
_WHOLE_CELLS = 120_000
# Sweeps of messages where one program proves the bound anyway.
_FEW_SWEEPS = 25
_PROVED = 1e-6
# After a round that gains less than this share of the cost neighbourhoods are of twice the size, so many times.
_LITTLE = 1e-4
_LARGER = 2
# Rounds that look for an answer that fits, memory at four times the price each time.
_REPAIRS = 10


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is searched.

    Attributes:
      sweeps: of messages, for the bound and the first answers.
      neighbourhoods: that are solved.
      nodes: of HiGHS's tree in each, and 100 times as many in the whole problem.
      deadline: cuts all of it short.
    """

    sweeps: int = 100
    neighbourhoods: int = 2_000
    nodes: int = 50
    deadline: Deadline = NEVER


@dataclass(frozen=True, slots=True)
class Answer:
    """A choice per node.

    Attributes:
      cost: of the choices.
      bound: no answer that fits in memory costs less.
      gap: (cost - bound) / cost, 0 where the cost is 0.
      status: "optimal", "best found", or "too large": no answer was found that fits in memory.
    """

    choices: tuple[int, ...]
    cost: float
    bound: float
    gap: float
    status: str


def solve(problem: ChoiceProblem, effort: Effort, start: Sequence[int] | None = None) -> Answer:
    """The best choices found.

    Args:
      start: an answer to begin with; one that is forbidden or does not fit is no help, and no harm.

    Raises:
      RhinoError: nothing is allowed, or it is proved that nothing fits in memory.
    """
    reduction = reduce_problem(problem)
    model = Model.of(reduction)
    found, bound = _Search(model, effort).run() if model.costs else (np.zeros(0, dtype=np.intp), model.constant)
    choices = reduction.expand(model.expand(found))
    if start is not None and _better(problem, start, choices):
        choices = list(start)
    cost = problem.cost(choices)
    nothing_fits, bound = bound == inf, min(bound, cost)
    gap = (cost - bound) / cost if cost > 0 else 0.0
    status = "optimal" if gap <= _PROVED else "best found"
    if problem.limit is not None and problem.peak(choices) > problem.limit:
        if not model.costs or nothing_fits:
            raise RhinoError(_TOO_SMALL, "raise the limit of memory")
        status = "too large"
    return Answer(tuple(choices), cost, bound, gap, status)


_TOO_SMALL = "no choices fit in memory together"


def _better(problem: ChoiceProblem, one: Sequence[int], other: Sequence[int]) -> bool:
    limit = inf if problem.limit is None else problem.limit
    if problem.peak(one) > limit:
        return False
    return problem.peak(other) > limit or problem.cost(one) < problem.cost(other)


class _Search:
    """The best answer so far of a model with at least one decision, and the bound."""

    def __init__(self, model: Model, effort: Effort) -> None:
        self.model, self.effort = model, effort
        self.bound = -inf
        self.best: Index = np.array([costs.argmin() for costs in model.costs])
        self.over = inf
        self.tried = 0
        self.cost = inf
        self.surroundings = Surroundings(model)
        self.cells = sum(pair.costs.size for pair in model.pairs) + int(model.offsets[-1])

    def run(self) -> tuple[Index, float]:
        """The best answer and the bound."""
        if self.model.room.min(initial=0.0) < -self.model.tolerance:
            return self.best, inf  # even the least usages are too much
        effort, deadline = self.effort, self.effort.deadline
        small = self.cells <= _WHOLE_CELLS
        sweeps = min(effort.sweeps, _FEW_SWEEPS) if small else effort.sweeps
        # A quarter of the time: the rest is for answers.
        relaxed = relax(self.model, sweeps, deadline.half(found=True).half(found=True))
        self.bound = relaxed.bound
        self.messages = relaxed.messages
        for choices in (self.best, *relaxed.rounded):
            self._take(choices)
        penalty = self._penalty(relaxed.prices)
        for choices in relaxed.rounded:
            self._take(descend(self.model, choices, penalty, deadline))
        if small:
            self._whole()
        for _ in range(_REPAIRS):
            if self.over == 0 or self._ended():
                break
            self._round(penalty, _NEAR_CELLS)
            penalty *= 4
        self._take(descend(self.model, self.best, penalty, deadline))
        larger = 0
        while not self._ended():
            over, cost = self.over, self.cost
            self._round(inf if over == 0 else penalty, _NEAR_CELLS << larger)
            if (self.over, self.cost) < (over, cost - _LITTLE * abs(cost)):
                larger = 0
            elif larger < _LARGER:
                larger += 1
            elif (self.over, self.cost) == (over, cost):
                break
        return self.best, self.bound

    def _ended(self) -> bool:
        return self.tried >= self.effort.neighbourhoods or self.effort.deadline.over() or self._proved()

    def _proved(self) -> bool:
        return self.bound == inf or (self.over == 0 and self.cost - self.bound <= _PROVED * abs(self.cost))

    def _penalty(self, prices: Numbers) -> float:
        """What a byte too many costs in the programs of answers that do not fit yet: far more than memory is worth."""
        room = max(1.0, float(np.abs(self.model.room).max(initial=1.0)))
        worth = self.cost if self.cost < inf else max(1.0, abs(self.bound))
        return max(10 * float(prices.max(initial=0.0)), worth / room)

    def _take(self, choices: Index) -> bool:
        """Keeps an answer that exceeds the memory less, or costs less."""
        over, cost = float(self.model.overflow(choices).sum()), self.model.cost(choices)
        if not np.isfinite(cost) or (over, cost) >= (self.over, self.cost):
            return False
        self.best, self.over, self.cost = choices, over, cost
        return True

    def _whole(self) -> None:
        nodes = 100 * self.effort.nodes
        everything = list(range(len(self.model.costs)))
        found = best_of(self.model, everything, self.best, inf, Limits(nodes, 0.0, self.effort.deadline))
        self.bound = max(self.bound, self.model.constant + found.bound)
        if found.choices is not None:
            self._take(found.choices)

    def _round(self, penalty: float, cells: int) -> None:
        """Neighbourhoods of a size until each decision that may be wrong was free once or more."""
        if self.over > 0:
            weights = blame(self.model, self.best, self.model.overflow(self.best))
        else:
            weights = self.messages.slack(self.best)
        with ThreadPoolExecutor(AT_ONCE) as threads:
            for batch in self.surroundings.batches(weights, cells):
                if self._ended() or (penalty < inf and self.over == 0):
                    return
                self.tried += len(batch)
                limits = Limits(self.effort.nodes, 1e-4, self.effort.deadline)
                start = self.best
                found = threads.map(lambda free: best_of(self.model, free, start, penalty, limits).choices, batch)  # noqa: B023
                self._take_all([choices for choices in found if choices is not None])

    def _take_all(self, answers: list[Index]) -> None:
        """Keeps what the answers of a batch change, all of it if it fits together."""
        together, start = self.best.copy(), self.best
        for choices in answers:
            together = np.where(choices != start, choices, together)
        if len(answers) < 2 or not self._take(together):
            for choices in answers:
                self._take(choices)
