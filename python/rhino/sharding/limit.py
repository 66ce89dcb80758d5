"""The best plan on one mesh within a memory limit: cutting planes around the search without one.

Owns that loop, and the smallest plan for the message when there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from rhino.program.memory import Lifetimes
from rhino.sharding.costs import States
from rhino.sharding.cuts import MemoryRow, cut_at
from rhino.sharding.descent import Descent, Setting, descend, jointly, start_from_nothing
from rhino.sharding.kept import memory

_MAX_CUTS = 12
_HALVINGS = 6
# How often a plan that is over the limit may meet the rows that it brought.
_TIGHTER = 2


@dataclass(frozen=True, slots=True)
class Limit:
    """Bytes one device may hold at its peak, and when values of the program live."""

    nbytes: int
    life: Lifetimes


def within(setting: Setting, limit: Limit, first: Descent, known: Sequence[States] | None = None) -> Descent:
    """The best plan found whose predicted peak is within the limit.

    Each plan over the limit adds a row for what is alive at its peak (a cutting plane), and the search goes on: with
    one axis after the other, which takes a fraction of the time, then with all at once where that is affordable.

    Args:
      first: the best plan without a limit.
      known: states of a plan within it, if there is one.

    Returns: a Descent with `fits` False, the smallest peak seen, when no plan within the limit was found; its bound is
      above the setting's cutoff when one would be too slow.
    """
    return _Cutting(setting, limit, first, known).run()


class _Cutting:
    """One search: the rows so far, the best plan within the limit, the last over it, and that with the least peak."""

    def __init__(self, setting: Setting, limit: Limit, first: Descent, known: Sequence[States] | None) -> None:
        self.setting, self.limit, self.first, self.known = setting, limit, first, known
        self.cuts: list[MemoryRow] = []
        self.best: Descent | None = None
        self.loose = False
        self.tightened = 0
        self.over = self.smallest = first
        self.judge(first)

    def run(self) -> Descent:
        if self.best is not None:
            return self.best
        while self.goes_on() and self.best is None:
            found = self.one_by_one()
            if found is None and not self.loose:
                # What no plan meets a little below the limit, one may right at it.
                self.loose, self.cuts = True, [cut.loosened() for cut in self.cuts]
                found = self.one_by_one()
            if found is None:
                break
            if found.states != self.over.states:
                self.judge(found)
            elif not self.tighten():
                break
        while self.goes_on():
            # One axis at a time may find no way where several at once do; a plan over the limit is where they start.
            start = self.best or replace(self.over, objective=inf)
            found = jointly(self.setting, start, self.cuts)
            if found.bound > self.setting.cutoff:
                return self.best or replace(self.smallest, fits=False, bound=found.bound)
            if found.states == start.states or self.judge(found):
                break
        return self.best or replace(self.smallest, fits=False)

    def goes_on(self) -> bool:
        return len(self.cuts) <= _MAX_CUTS and not self.setting.deadline.over(self.best is not None)

    def tighten(self) -> bool:
        """Leaves less room in the row that a plan over the limit meets, by what the plan is over it; whether it may.

        Rows count less than there is of what is in several layouts at once.
        """
        self.tightened += 1
        self.cuts[-1] = self.cuts[-1].scaled(self.limit.nbytes / self.over.peak_bytes)
        return self.tightened <= _TIGHTER

    def one_by_one(self) -> Descent | None:
        """The better plan that meets all rows of those from what is known and from the plan over the limit."""
        order = self.setting.orders[0]
        known = descend(self.setting, order, self.known, self.cuts) if self.known else None
        tries = [
            known if self.known else start_from_nothing(self.setting, self.cuts),
            descend(self.setting, order, self.over.states, self.cuts),
        ]
        return min((f for f in tries if f is not None), key=lambda f: f.objective, default=None)

    def judge(self, found: Descent) -> bool:
        """Takes a plan; one over the limit adds a row. Whether it fits."""
        costs, life = self.setting.costs, self.limit.life
        used = memory(costs, found.states, life)
        fits = used.peak_bytes <= self.limit.nbytes
        judged = replace(found, peak_bytes=used.peak_bytes, fits=fits, bound=self.first.bound)
        if self.smallest.peak_bytes == 0 or used.peak_bytes < self.smallest.peak_bytes:
            self.smallest = judged
        if fits:
            if self.best is None or judged.objective < self.best.objective:
                self.best = judged
        else:
            self.over = judged
            cut = cut_at(costs, found.states, life, used.at, self.limit.nbytes)
            self.cuts.append(cut.loosened() if self.loose else cut)
        return fits


def smallest(setting: Setting, limit: Limit, over: Descent) -> Descent:
    """The plan with the lowest peak found by bisection between a limit that was not met and a plan over it.

    For the error message, so a few steps are enough; ends with a plan that is within the limit after all.
    """
    low, best, quick = limit.nbytes, over, replace(setting, largest=0)
    for _ in range(_HALVINGS):
        middle = (low + best.peak_bytes) // 2
        found = within(quick, replace(limit, nbytes=middle), over)
        if not found.fits:
            low = middle
        if found.peak_bytes < best.peak_bytes:
            best = found
        if best.peak_bytes <= limit.nbytes:
            break
    return replace(best, fits=best.peak_bytes <= limit.nbytes)
