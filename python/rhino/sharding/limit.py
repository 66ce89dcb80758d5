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
from rhino.sharding.evaluate import memory

_MAX_CUTS = 12
_HALVINGS = 6


@dataclass(frozen=True, slots=True)
class Limit:
    """Bytes one device may hold at its peak, and when values of the program live."""

    nbytes: int
    life: Lifetimes


def within(setting: Setting, limit: Limit, first: Descent, known: Sequence[States] | None = None) -> Descent:
    """The best plan found whose predicted peak is within the limit.

    Each plan over the limit adds a row for what is alive at its peak (a cutting plane), and the search goes on.

    Args:
      first: the best plan without a limit.
      known: states of a plan within it, if there is one.

    Returns: a Descent with `fits` False, the smallest peak seen, when no plan within the limit was found; its bound is
      above the setting's cutoff when one would be too slow.
    """
    costs, bound = setting.costs, first.bound
    cuts: list[MemoryRow] = []
    current = smallest = first
    for _ in range(_MAX_CUTS):
        used = memory(costs, current.states, limit.life)
        current = replace(current, peak_bytes=used.peak_bytes, fits=used.peak_bytes <= limit.nbytes, bound=bound)
        if smallest.peak_bytes == 0 or used.peak_bytes < smallest.peak_bytes:
            smallest = current
        if current.fits:
            return current
        if setting.deadline.over(found=False):
            break
        cuts.append(cut_at(costs, current.states, limit.life, used.at, limit.nbytes))
        found = _under(setting, cuts, current, known)
        if found is not None and found.bound > setting.cutoff:
            return replace(smallest, fits=False, bound=found.bound)
        if found is None or found.states == current.states:
            break
        current = found
    return replace(smallest, fits=False, bound=bound)


def _under(setting: Setting, cuts: list[MemoryRow], over: Descent, known: Sequence[States] | None) -> Descent | None:
    """The best plan found that meets all rows."""
    order = setting.orders[0]
    other = descend(setting, order, known, cuts) if known else start_from_nothing(setting, cuts)
    tries = [other, descend(setting, order, over.states, cuts)]
    best = min((f for f in tries if f is not None), key=lambda f: f.objective, default=None)
    # One axis at a time may find no way where several at once do; the plan over the limit is only where they start.
    found = jointly(setting, best or replace(over, objective=inf), cuts)
    return found if found.objective < inf or found.bound > setting.cutoff else None


def smallest(setting: Setting, limit: Limit, over: Descent) -> Descent:
    """The plan with the lowest peak found by bisection between a limit that was not met and a plan over it.

    It only serves the error message, so a few steps are enough.
    """
    low, best, quick = limit.nbytes, over, replace(setting, largest=0)
    for _ in range(_HALVINGS):
        middle = (low + best.peak_bytes) // 2
        found = within(quick, replace(limit, nbytes=middle), over)
        if not found.fits:
            low = middle
        if found.peak_bytes < best.peak_bytes:
            best = found
    return best
