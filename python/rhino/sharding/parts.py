"""One program for all devices, whole or as a loop over parts of its batch: the number of parts with the fastest plan.

Owns which numbers are tried, in which order, and when that stops (docs/design/search.md, "Micro-batches"). How a step
is cut is its programs' business, and what a plan takes that of the search of one program.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf
from typing import Protocol

from rhino.machine import Cluster
from rhino.machine.units import nbytes
from rhino.program.alternative import Alternative
from rhino.program.data import Graph
from rhino.sharding.outcome import Progress, as_alternative
from rhino.sharding.planner import OUT_OF_TIME, FreePlan, MeshSearch, Options
from rhino.sharding.solution import Solution
from rhino.sharding.time_model import TimeModel

# By level, how much faster a plan must be able to be for its program to be searched under the limit.
_WORTH = {"O1": 0.01, "O2": 0.002}
# More parts are tried as long as they bring the peak of the fastest plan to this share of what it was.
_SAVES = 0.9


class StepInParts(Protocol):
    """A step, and the same as loops over parts of its batch."""

    @property
    def counts(self) -> tuple[int, ...]:
        """Into how many parts the batch divides, ascending; without 1."""

    def graph(self, parts: int) -> Graph | None:
        """The step as a loop over so many parts, for 1 as it is; None if it cannot be cut so."""


def plan_in_parts(
    programs: StepInParts,
    cluster: Cluster,
    options: Options,
    progress: Progress | None = None,
    model: TimeModel | None = None,
) -> tuple[int, Solution]:
    """The number of parts whose fastest plan within the memory limit takes the least time, and that plan.

    By the model of time parts only save memory: where the fastest plan of the whole batch fits, nothing else is tried.

    Args:
      options: of the search of each program, without `life` and `prepared`, which are one program's.
      progress: called with (done, total, label) as meshes of a program are finished.

    Raises:
      RhinoError: no mesh suits the devices, or nothing fits the memory limit however the batch is cut.
    """
    return _PartsSearch(programs, cluster, options, progress, model or TimeModel(cluster)).run()


class _PartsSearch:
    def __init__(
        self, programs: StepInParts, cluster: Cluster, options: Options, progress: Progress | None, model: TimeModel
    ) -> None:
        self.programs, self.cluster, self.options, self.model = programs, cluster, options, model
        self.progress = progress
        self.searches: dict[int, MeshSearch] = {}
        self.free: dict[int, FreePlan] = {}
        self.found: dict[int, Solution] = {}
        self.lost: dict[int, str] = {}

    def run(self) -> tuple[int, Solution]:
        whole = self._search(1)
        assert whole is not None
        if self._fits(1) or not self._climb():
            whole.run()
            return 1, whole.solution()
        self._descend()
        self._tighten()
        if not self.found:
            # Of the largest number of parts, which needs least.
            parts = max(self.searches)
            raise self.searches[parts].nothing_fits(parts)
        best = self._best
        return best, replace(self.found[best], alternatives=self._alternatives(best), seconds=self._seconds())

    # --- which are tried ----------------------------------------------------------------------------------------------

    def _climb(self) -> bool:
        """Upwards until the fastest plan of one fits, or more parts save little; whether the step can be cut at all."""
        known = 1
        for parts in self.programs.counts:
            if parts < self._needed(known) or self._search(parts) is None:
                continue
            before, known = known, parts
            if self._fits(parts):
                self._solve(parts)
                break
            if self.free[parts].peak_bytes > _SAVES * self.free[before].peak_bytes or self._late():
                break
        return known > 1

    def _needed(self, known: int) -> float:
        """How many parts fit, by what so many take: all but the arguments is divided; twice as many at least."""
        free = self.free[known]
        room = free.limit_bytes - free.argument_bytes
        if room <= 0:
            return 2 * known
        share = known * (free.peak_bytes - free.argument_bytes) / room
        return max(ceil(share), 2 * known)

    def _descend(self) -> None:
        """From what was found to fewer parts, as long as their fastest plans fit."""
        if not self.found:
            return
        parts = self._best
        for fewer in reversed(self.programs.counts):
            # Half as many, or what comes next to that.
            if 2 * fewer > parts or fewer in self.free or self._search(fewer) is None:
                continue
            if not self._fits(fewer) or self._late():
                return
            self._solve(fewer)
            parts = fewer

    def _tighten(self) -> None:
        """Those whose fastest plans do not fit, under the limit: the most promising first, while they can win."""
        tight = [n for n, free in self.free.items() if not free.fits]
        # The one that needs least is the most likely to fit at all.
        for parts in sorted(tight, reverse=True):
            if not self.found and not (self.lost and self._late()):
                self._solve(parts)
        worth = 1 - _WORTH[self.options.level]
        for parts in sorted(tight, key=lambda n: (self.free[n].step_time_s, n)):
            known = parts in self.found or parts in self.lost
            if not (known or self._late() or self.free[parts].step_time_s > worth * self._least_s):
                self._solve(parts)

    # --- one of them --------------------------------------------------------------------------------------------------

    def _search(self, parts: int) -> MeshSearch | None:
        """The search of so many parts, begun without the limit; None if the step cannot be cut so."""
        if parts not in self.searches:
            graph = self.programs.graph(parts)
            if graph is None:
                return None
            search = self.searches[parts] = MeshSearch(graph, self.model, self.options, self._told(parts))
            self.free[parts] = search.free()
        return self.searches[parts]

    def _told(self, parts: int) -> Progress | None:
        tell = self.progress
        if parts == 1 or tell is None:
            return tell
        return lambda done, total, label: tell(done, total, f"{parts} micro-batches, {label}")

    def _fits(self, parts: int) -> bool:
        return self.free[parts].fits

    def _solve(self, parts: int) -> None:
        """The best plan of so many parts, if it is faster than those found."""
        search = self.searches[parts]
        if search.run(self._least_s * (1 - 1e-9)):
            self.found[parts] = search.solution()
            return
        self.lost[parts] = (
            OUT_OF_TIME if self._late() else "slower within it" if self.found else "no smaller one was found"
        )

    def _late(self) -> bool:
        return self.options.deadline.over(bool(self.found))

    # --- what was found -----------------------------------------------------------------------------------------------

    @property
    def _best(self) -> int:
        return min(self.found, key=lambda n: (self.found[n].predicted.step_time_s, n))

    @property
    def _least_s(self) -> float:
        return self.found[self._best].predicted.step_time_s if self.found else inf

    def _seconds(self) -> float:
        return sum(search.clock[-1] - search.clock[0] for search in self.searches.values())

    def _alternatives(self, best: int) -> tuple[Alternative, ...]:
        """What lost: meshes of the best number of parts, and the best of every other."""
        chosen = self.found[best]
        found = list(chosen.alternatives)
        for parts, other in self.found.items():
            if parts != best:
                found.append(as_alternative(_name(parts), other.predicted, chosen.predicted))
        for parts, free in self.free.items():
            if parts not in self.found:
                why = f"its fastest plan needs {nbytes(free.peak_bytes)} of {nbytes(free.limit_bytes)}"
                why += f"; {self.lost[parts]}" if parts in self.lost else ""
                found.append(Alternative(_name(parts), why, free.step_time_s, free.peak_bytes))
        return tuple(sorted(found, key=lambda a: a.rank))


def _name(parts: int) -> str:
    return f"{parts} micro-batches" if parts > 1 else "1 micro-batch"
