"""All axes of one mesh: each in turn placed optimally given the others, until none improves; memory as added rows.

Owns the coordinate descent of level O1 and the cutting planes for the memory limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rhino.cost.memory import Lifetimes
from rhino.search.axis import AxisProgram
from rhino.search.costs import Costs, States
from rhino.search.cuts import Cut, cut_at, row
from rhino.search.evaluate import memory

_MAX_ROUNDS = 6
_MAX_CUTS = 12
_HALVINGS = 6


@dataclass(frozen=True, slots=True)
class Descent:
    """States per class and the objective they reach, in seconds; `fits` is False when the memory rows cannot be met."""

    states: tuple[States, ...]
    objective: float
    peak_bytes: int
    fits: bool


def descend(
    costs: Costs,
    order: Sequence[int],
    pinned: dict[int, States],
    *,
    start: Sequence[States] | None = None,
    cuts: Sequence[Cut] = (),
    parallel: bool = False,
    time_limit_s: float = 30.0,
) -> Descent | None:
    """Places the axes in `order`, then again until the objective stays.

    Args:
      start: states to improve on; all replicated by default.
      cuts: memory rows (see `with_memory`).
      parallel: forbid replicated dots (published conventions do).

    Returns: None when a memory row cannot be met on some axis after the first round.
    """
    blank: States = (0,) * len(costs.sizes)
    states: list[States] = list(start) if start else [pinned.get(k, blank) for k in range(len(costs.quotient.counts))]
    last = float("inf")
    for turn in range(_MAX_ROUNDS):
        objective = last
        for position, axis in enumerate(order):
            program = AxisProgram(costs, axis, states, pinned, parallel)
            # Before every axis is placed once, the others hold everything replicated: too early to judge memory.
            if turn > 0 or start or position == len(order) - 1:
                for cut in cuts:
                    program.limit(*row(program, cut))
            found = program.solve(time_limit_s)
            if found is None:
                return None
            states = [(*s[:axis], new, *s[axis + 1 :]) for s, new in zip(states, found.states, strict=True)]
            objective = found.objective
        if objective >= last * (1 - 1e-9):
            break
        last = objective
    return Descent(tuple(states), min(objective, last), 0, True)


def with_memory(
    costs: Costs,
    orders: Sequence[Sequence[int]],
    pinned: dict[int, States],
    life: Lifetimes,
    limit: int,
    first: Descent,
    parallel: bool = False,
) -> Descent:
    """The best plan found whose predicted peak is within `limit` bytes.

    Each plan over the limit adds a row for what is alive at its peak (a cutting plane), and the search goes on.

    Returns: a Descent with `fits` False, the smallest peak seen, when no plan within the limit was found.
    """
    cuts: list[Cut] = []
    best: Descent | None = None
    smallest = first
    current: Descent | None = first
    for _ in range(_MAX_CUTS):
        assert current is not None
        used = memory(costs, current.states, life)
        current = Descent(current.states, current.objective, used.peak_bytes, used.peak_bytes <= limit)
        if smallest.peak_bytes == 0 or used.peak_bytes < smallest.peak_bytes:
            smallest = current
        if current.fits:
            best = current
            break
        cuts.append(cut_at(costs, current.states, life, used.at, limit))
        candidates = [descend(costs, order, pinned, cuts=cuts, parallel=parallel) for order in orders]
        candidates.append(descend(costs, orders[0], pinned, cuts=cuts, start=current.states, parallel=parallel))
        found = [c for c in candidates if c is not None]
        if not found:
            break
        nxt = min(found, key=lambda c: c.objective)
        if nxt.states == current.states:
            break
        current = nxt
    return best or Descent(smallest.states, smallest.objective, smallest.peak_bytes, False)


def smallest(
    costs: Costs,
    orders: Sequence[Sequence[int]],
    pinned: dict[int, States],
    life: Lifetimes,
    limit: int,
    over: Descent,
    parallel: bool = False,
) -> Descent:
    """The plan with the lowest peak found by bisection between a limit that was not met and a plan over it.

    It only serves the error message, so a few steps are enough.
    """
    low, best = limit, over
    for _ in range(_HALVINGS):
        middle = (low + best.peak_bytes) // 2
        found = with_memory(costs, orders, pinned, life, middle, over, parallel)
        if not found.fits:
            low = middle
        if found.peak_bytes < best.peak_bytes:
            best = found
    return best
