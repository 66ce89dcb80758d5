"""By when a search ends: one moment, made once from what a user allows, that every search of a plan looks at.

Owns the clock. Knows nothing of what is searched.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from rhino.errors import RhinoError

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a search takes what it has, and when it gives up with nothing. A clock that is not looked at costs nothing.

    Attributes:
      at_s: on the clock, the moment after which the best found so far is taken.
      hopeless_s: the moment after which a search that has found nothing ends, too; until then it goes on.
      clock: seconds that only grow.
    """

    at_s: float = inf
    hopeless_s: float = inf
    clock: Clock = time.monotonic

    def sooner(self, budget_s: float | None) -> Deadline:
        """The sooner of this and `budget_s` seconds from now; this one for None and 0, which are no limit.

        Raises:
          RhinoError: a negative number of seconds, or none at all.
        """
        if not budget_s:
            return self
        if not budget_s > 0:
            raise RhinoError(f"budget {budget_s} is not a time in seconds", "give more than 0, or leave it out")
        return replace(self, at_s=min(self.at_s, self.clock() + budget_s))

    def over(self, found: bool = True) -> bool:
        """Whether a search ends now that has `found` something, or nothing."""
        at_s = self._end_s(found)
        return at_s < inf and self.clock() > at_s

    def at_most(self, seconds: float, found: bool = True) -> float:
        """These seconds, or those that are left to a search that has `found` something, or nothing."""
        at_s = self._end_s(found)
        return seconds if at_s == inf else max(0.0, min(seconds, at_s - self.clock()))

    def with_plan(self) -> Deadline:
        """For what can only improve on a plan that is there: it ends in time even if it finds nothing."""
        return replace(self, hopeless_s=min(self.at_s, self.hopeless_s))

    def patient(self) -> Deadline:
        """For what there must be, however long it takes."""
        return replace(self, hopeless_s=inf)

    def before(self, seconds: float, found: bool = False) -> Deadline:
        """As much sooner, to leave time for what comes after; of what is left at most half, if nothing is `found`."""
        if self.at_s == inf:
            return self
        shift_s = seconds if found else min(seconds, max(0.0, self.at_s - self.clock()) / 2)
        return replace(self, at_s=self.at_s - shift_s, hopeless_s=self.hopeless_s - shift_s)

    def half(self, found: bool) -> Deadline:
        """Of what is left the first half, for one of two searches: for one that finds nothing, or also if `found`."""
        if self.at_s == inf:
            return self
        now = self.clock()
        middle_s = now + max(0.0, self.at_s - now) / 2
        return replace(self, at_s=middle_s if found else self.at_s, hopeless_s=middle_s)

    def _end_s(self, found: bool) -> float:
        return self.at_s if found else self.hopeless_s


NEVER = Deadline()
