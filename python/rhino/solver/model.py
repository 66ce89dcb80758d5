"""A reduced problem as flat arrays: what is left to decide, and the rows of memory that can bind.

It must not know how choices are searched or bounded (docs/design/solver.md, "Rows of memory").
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rhino.solver.problem import Numbers
from rhino.solver.reduce import Reduction

Index = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class PairTable:
    """A pair whose equal rows and columns are taken together: `costs[rows[i], columns[j]]`, each line's least is 0."""

    left: int
    right: int
    rows: Index
    columns: Index
    costs: Numbers

    @property
    def full(self) -> Numbers:
        """The cost of each two choices."""
        return self.costs[self.rows][:, self.columns]


@dataclass(frozen=True)
class Model:
    """Decisions with two choices or more.

    Attributes:
      clusters: of the reduction, by decision; those that are not here have one choice.
      costs: one array per decision; choices are numbered through at `offsets`.
      constant: what all answers cost.
      owner, first, last: per use of memory its decision and the slots [first, last) of time in which it is live.
      usages: per use an array over the owner's choices, the least 0.
      room: per slot the memory that is left for the uses; below 0 where nothing fits.
    """

    clusters: tuple[int, ...]
    count: int
    costs: tuple[Numbers, ...]
    pairs: tuple[PairTable, ...]
    constant: float
    owner: Index
    first: Index
    last: Index
    usages: tuple[Numbers, ...]
    room: Numbers

    @classmethod
    def of(cls, problem: Reduction) -> Model:
        """The model of what is left of a problem."""
        free = [i for i, cluster in enumerate(problem.clusters) if len(cluster.costs) > 1]
        place = {cluster: i for i, cluster in enumerate(free)}
        constant = sum(float(cluster.costs[0]) for cluster in problem.clusters if len(cluster.costs) == 1)
        costs = [problem.clusters[i].costs.copy() for i in free]
        pairs = []
        for left, right, table in problem.pairs:
            u, v = place[left], place[right]
            rows = table.min(1)
            columns = (table - rows[:, None]).min(0)
            costs[u] += rows
            costs[v] += columns
            rest = table - rows[:, None] - columns
            if rest.any():
                rest, of_row = _distinct(rest)
                turned, of_column = _distinct(rest.T)
                pairs.append(PairTable(u, v, of_row, of_column, turned.T))
        owner, first, last, usages, room = _uses(problem, place)
        return cls(tuple(free), len(problem.clusters), tuple(costs), tuple(pairs), constant,
                   owner, first, last, usages, room)  # fmt: skip

    @cached_property
    def offsets(self) -> Index:
        """Where the choices of each decision begin, and at the end how many there are."""
        return np.cumsum([0, *map(len, self.costs)])

    @cached_property
    def flat_usages(self) -> tuple[Index, Numbers]:
        """Where each use begins, and all usages."""
        starts = np.cumsum([0, *map(len, self.usages)])[:-1]
        return starts, np.concatenate(self.usages) if self.usages else np.zeros(0)

    @cached_property
    def neighbours(self) -> list[list[int]]:
        """Per decision the pairs it is in."""
        found: list[list[int]] = [[] for _ in self.costs]
        for number, pair in enumerate(self.pairs):
            found[pair.left].append(number)
            found[pair.right].append(number)
        return found

    @cached_property
    def uses_of(self) -> list[list[int]]:
        """Per decision its uses of memory."""
        found: list[list[int]] = [[] for _ in self.costs]
        for use, owner in enumerate(self.owner.tolist()):
            found[owner].append(use)
        return found

    def cost(self, choices: Index) -> float:
        """What an answer costs."""
        own = sum(float(costs[c]) for costs, c in zip(self.costs, choices, strict=True))
        return (
            self.constant
            + own
            + sum(float(p.costs[p.rows[choices[p.left]], p.columns[choices[p.right]]]) for p in self.pairs)
        )

    def profile(self, choices: Index, uses: Index | None = None) -> Numbers:
        """The memory that uses take in each slot, all of them or some."""
        starts, flat = self.flat_usages
        taken = slice(None) if uses is None else uses
        used = flat[starts[taken] + choices[self.owner[taken]]]
        slots = len(self.room) + 1
        change = np.bincount(self.first[taken], used, slots) - np.bincount(self.last[taken], used, slots)
        return change.cumsum()[:-1]

    def overflow(self, choices: Index) -> Numbers:
        """By how much each slot's room is exceeded."""
        over = self.profile(choices) - self.room
        return np.where(over > self.tolerance, over, 0.0)

    @cached_property
    def tolerance(self) -> float:
        """What sums of usages miss by rounding, never more than a byte in 1e12: usages are whole numbers."""
        return 1e-13 * float(np.abs(self.room).max(initial=0.0) + sum(float(u.max()) for u in self.usages))

    def expand(self, choices: Index) -> list[int]:
        """A choice per cluster of the reduction."""
        full = [0] * self.count
        for cluster, choice in zip(self.clusters, choices.tolist(), strict=True):
            full[cluster] = choice
        return full


def _distinct(table: Numbers) -> tuple[Numbers, Index]:
    """The rows that differ, in the order in which they come, and which of them each row is."""
    numbers: dict[bytes, int] = {}
    of_row = np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in table], dtype=np.intp)
    return table[np.unique(of_row, return_index=True)[1]], of_row


def _uses(problem: Reduction, place: dict[int, int]) -> tuple[Index, Index, Index, tuple[Numbers, ...], Numbers]:
    """What varies of the usages, per slot of time; slots whose room cannot bind before another's are left out."""
    if problem.limit is None:
        none = np.zeros(0, dtype=np.intp)
        return none, none, none, (), np.zeros(0)
    spans = [(i, span, used) for i, cluster in enumerate(problem.clusters) for span, used in cluster.spans.items()]
    times = np.unique(np.array([t for _, span, _ in spans for t in span] or [0, 1]))
    starts = np.searchsorted(times, [span[0] for _, span, _ in spans])
    ends = np.searchsorted(times, [span[1] for _, span, _ in spans])
    least = np.array([used.min() for _, _, used in spans])
    base = np.bincount(starts, least, len(times)) - np.bincount(ends, least, len(times))
    room = (problem.limit - base.cumsum())[:-1]
    varies = np.array([k for k, (_, _, used) in enumerate(spans) if used.max() > used.min()], dtype=np.intp)
    stops = np.zeros(len(times), bool)
    stops[ends[varies]] = True
    # Until the next end, uses only come: a slot counts if its room is less than that of all later ones of its run.
    kept, least_room = [], np.inf
    for slot in range(len(room) - 1, -1, -1):
        if slot + 1 < len(times) and stops[slot + 1]:
            least_room = np.inf
        if room[slot] < least_room:
            kept.append(slot)
            least_room = room[slot]
    slots = np.array(kept[::-1], dtype=np.intp)
    owner = np.array([place[spans[k][0]] for k in varies], dtype=np.intp)
    usages = tuple(spans[k][2] - least[k] for k in varies)
    first, last = np.searchsorted(slots, starts[varies]), np.searchsorted(slots, ends[varies])
    return owner, first, last, usages, room[slots]
