"""All axes of one mesh: each in turn placed optimally given the others, until none improves; memory as added rows.

Owns the coordinate descent of level O1 and the cutting planes for the memory limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rhino.cost.memory import Lifetimes
from rhino.search.axis import AxisProgram, MemoryRow
from rhino.search.costs import Costs, States
from rhino.search.evaluate import local_bytes, memory

_MAX_ROUNDS = 6
_MAX_CUTS = 12
# Keep a little room: a plan exactly at the limit on paper is over it after XLA's padding.
_SLACK = 0.98


@dataclass(frozen=True, slots=True)
class Descent:
    """States per class and the objective they reach, in seconds. `fits` is False when the memory rows could not be met."""

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
    rows: Sequence[tuple[int, frozenset[int], int]] = (),
    parallel: bool = False,
    life: Lifetimes | None = None,
    time_limit_s: float = 30.0,
) -> Descent | None:
    """Places the axes in `order`, then again until the objective stays.

    Args:
      start: states to improve on; all replicated by default.
      rows: memory cuts (see `with_memory`).
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
            if rows and life is not None and (turn > 0 or start or position == len(order) - 1):
                program.limit_memory([_memory_row(costs, program, cut) for cut in rows])
            found = program.solve(time_limit_s)
            if found is None:
                return None
            states = [(*s[:axis], new, *s[axis + 1 :]) for s, new in zip(states, found.states, strict=True)]
            objective = found.objective
        if objective >= last * (1 - 1e-9):
            break
        last = objective
    return Descent(tuple(states), min(objective, last), 0, True)


Cut = tuple[int, frozenset[int], int]


def _memory_row(costs: Costs, program: AxisProgram, cut: Cut) -> MemoryRow:
    """Bytes alive at a cut's program point, per class and state of the program's axis."""
    room, alive, _ = cut
    problem, klass = costs.problem, costs.quotient.klass
    by_class: dict[int, dict[int, int]] = {}
    for v in sorted(alive):
        n = problem.node_of[v]
        if n < 0:
            room -= problem.graph.values[v].nbytes
            continue
        table = by_class.setdefault(klass[n], {})
        table[v] = problem.graph.values[v].nbytes
    rows: dict[int, dict[int, float]] = {}
    for k, table in by_class.items():
        rows[k] = {}
        for s in program.x[k]:
            states = program._with(k, s)
            total = 0.0
            for v, nbytes in table.items():
                classes = problem.classes[v]
                parts = 1
                for st, size in zip(states, costs.sizes, strict=True):
                    if st > 0 and st - 1 in classes:
                        parts *= size
                total += nbytes / parts
            rows[k][s] = total
    return rows, float(room)


def with_memory(
    costs: Costs, orders: Sequence[Sequence[int]], pinned: dict[int, States], life: Lifetimes, limit: int, first: Descent,
    parallel: bool = False,
) -> Descent:
    """The best plan found whose predicted peak is within `limit` bytes.

    Each plan over the limit adds a row for what is alive at its peak (a cutting plane), and the search goes on from there.

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
        values = frozenset([v for v, _ in used.live] + [a.value for a in costs.problem.graph.arguments])
        plain = sum(local_bytes(costs, current.states, v) for v in values)
        # Copies and partial results at the peak are not variables of the row: they take their room as they are.
        extra = max(0, used.peak_bytes - plain)
        cuts.append((int(limit * _SLACK) - extra, values, used.at))
        candidates = [
            descend(costs, order, pinned, rows=cuts, life=life, parallel=parallel) for order in orders
        ]
        candidates += [
            descend(costs, order, pinned, rows=cuts, life=life, start=current.states, parallel=parallel)
            for order in orders[:1]
        ]
        found = [c for c in candidates if c is not None]
        if not found:
            break
        nxt = min(found, key=lambda c: c.objective)
        if nxt.states == current.states:
            break
        current = nxt
    return best or Descent(smallest.states, smallest.objective, smallest.peak_bytes, False)
