"""Searches of the forms of a step that are begun, and those that were, for who comes back to the step.

Owns which of them can go on: a step is planned again, where it was given up, once there is a plan to beat.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from rhino.program.data import Graph
from rhino.sharding.form_bounds import Form
from rhino.sharding.outcome import Progress
from rhino.sharding.planner import FreePlan, MeshSearch, Options
from rhino.sharding.time_model import TimeModel


@dataclass(frozen=True, slots=True)
class _Begun:
    """A search, what its fastest plan would take if memory were no matter, and when that was known."""

    search: MeshSearch
    free: FreePlan
    at_s: float


@dataclass
class BegunSearches:
    """Searches by form, for one step after another; a search is there until a plan within the limit is looked for."""

    known: dict[Form, _Begun] = field(default_factory=dict)

    def begin(
        self, form: Form, graph: Graph, model: TimeModel, options: Options, progress: Progress | None
    ) -> tuple[MeshSearch, FreePlan]:
        """The search of a form, begun without the limit. Of the same program, asked for alike, that goes on."""
        found = self.known.get(form)
        if found is not None and _goes_on(found.search, graph, model, options):
            search, away_s = found.search, time.perf_counter() - found.at_s
            search.options, search.deadline = options, options.deadline
            search.clock = [moment + away_s for moment in search.clock]
            return search, found.free
        search = MeshSearch(graph, model, options, progress)
        free = search.free()
        # Where time was over it may be another one's that counts.
        if not options.deadline.over():
            self.known[form] = _Begun(search, free, time.perf_counter())
        return search, free


def _goes_on(search: MeshSearch, graph: Graph, model: TimeModel, options: Options) -> bool:
    """Whether a search is the one asked for, but for how long it may take and what it has to beat."""
    asked = replace(search.options, deadline=options.deadline, rival_s=options.rival_s, costly=options.costly)
    return not search.begun and asked == options and search.model == model and search.graph == graph
