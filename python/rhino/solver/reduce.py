"""A problem made smaller without losing its optimum: what is tied together becomes one cluster.

Tables of pairs that allow one choice only tie nodes to each other; they are most of what the contest's files hold. It
must not know bounds or search (docs/design/solver.md, "Reductions").
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rhino.errors import RhinoError
from rhino.solver.problem import FORBIDDEN, ChoiceProblem, Numbers

_Index = NDArray[np.intp]
_Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Narrowed:
    """A cluster lost choices: its choice c was choice `kept[c]` before."""

    node: int
    kept: _Index


@dataclass(frozen=True, slots=True)
class Tied:
    """A cluster became part of another: its choice is `choice_of[c]` where the other's is c."""

    node: int
    into: int
    choice_of: _Index


@dataclass(frozen=True, slots=True)
class TiedNodes:
    """Nodes decided together: a cost per choice, and per span of time [start, end) a usage per choice."""

    node: int
    costs: Numbers
    spans: dict[_Span, Numbers]


@dataclass(frozen=True, slots=True)
class Reduction:
    """What is left to decide, and the way back.

    Attributes:
      clusters: with at least one choice; those with one are already decided but count in cost and memory.
      pairs: (cluster, cluster, table), each two clusters at most once, positions in `clusters`.
    """

    clusters: tuple[TiedNodes, ...]
    pairs: tuple[tuple[int, int, Numbers], ...]
    limit: float | None
    steps: tuple[Narrowed | Tied, ...]
    nodes: int

    def expand(self, choices: Sequence[int]) -> list[int]:
        """A choice per node of the problem, from one per cluster."""
        full = [0] * self.nodes
        for cluster, choice in zip(self.clusters, choices, strict=True):
            full[cluster.node] = choice
        for step in reversed(self.steps):
            if isinstance(step, Tied):
                full[step.node] = int(step.choice_of[full[step.into]])
            else:
                full[step.node] = int(step.kept[full[step.node]])
        return full


def reduce_problem(problem: ChoiceProblem) -> Reduction:
    """Removes choices that are never allowed and merges what is tied; the optimum stays, and its cost.

    Raises:
      RhinoError: no choices are allowed together, whatever the memory.
    """
    work = _Work(problem)
    work.run()
    alive = [node for node in range(len(problem.nodes)) if node not in work.gone]
    place = {node: position for position, node in enumerate(alive)}
    clusters = tuple(TiedNodes(node, work.costs[node], work.spans[node]) for node in alive)
    pairs = tuple(
        (place[node], place[other], table)
        for node in alive
        for other, table in sorted(work.tables[node].items())
        if node < other
    )
    return Reduction(clusters, pairs, problem.limit, tuple(work.steps), len(problem.nodes))


@dataclass(slots=True)
class _Work:
    problem: ChoiceProblem
    costs: list[Numbers] = field(init=False)
    spans: list[dict[_Span, Numbers]] = field(init=False)
    tables: list[dict[int, Numbers]] = field(init=False)  # both ways: the one is the other transposed
    steps: list[Narrowed | Tied] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)
    waiting: deque[_Span] = field(default_factory=deque)  # pairs to look at, each once
    queued: set[_Span] = field(default_factory=set)

    def __post_init__(self) -> None:
        nodes = self.problem.nodes
        self.costs = [_closed(node.costs) for node in nodes]
        self.spans = [
            {(node.start, node.end): node.usages} if node.start < node.end and node.usages.any() else {}
            for node in nodes
        ]
        self.tables = [{} for _ in nodes]
        for pair in self.problem.pairs:
            table = _closed(pair.costs)
            if pair.left == pair.right:
                self.costs[pair.left] = self.costs[pair.left] + table.diagonal()
            else:
                self._add(pair.left, pair.right, table)

    def run(self) -> None:
        narrow = [node for node, costs in enumerate(self.costs) if len(costs) == 1 or not np.isfinite(costs).all()]
        for node in narrow:
            self._narrow(node, np.isfinite(self.costs[node]))
        while self.waiting:
            left, right = self.waiting.popleft()
            self.queued.discard((left, right))
            if right in self.tables[left]:
                self._look(left, right)

    def _add(self, left: int, right: int, table: Numbers) -> None:
        if right in self.tables[left]:
            table = self.tables[left][right] + table
        self._put(left, right, table)

    def _put(self, left: int, right: int, table: Numbers) -> None:
        self.tables[left][right] = table
        self.tables[right][left] = table.T
        pair = (left, right) if left < right else (right, left)
        if pair not in self.queued:
            self.queued.add(pair)
            self.waiting.append(pair)

    def _drop(self, left: int, right: int) -> Numbers:
        del self.tables[right][left]
        return self.tables[left].pop(right)

    def _narrow(self, node: int, allowed: NDArray[np.bool_]) -> None:
        """Keeps the allowed choices; a node with one left is decided, and its pairs become costs of the others."""
        ready = {node: allowed}  # of each the newest: an older one would count choices that are gone
        while ready:
            node, allowed = ready.popitem()
            kept = np.flatnonzero(allowed)
            if not len(kept):
                raise RhinoError(
                    f"node {node} has no choice that is allowed with those of its neighbours",
                    "allow more pairs: a cost of 1e18 or more forbids one",
                )
            if len(kept) < len(allowed):
                self.steps.append(Narrowed(node, kept))
                self.costs[node] = self.costs[node][kept]
                self.spans[node] = {span: used[kept] for span, used in self.spans[node].items()}
            for other in list(self.tables[node]):
                if len(kept) > 1:
                    self._put(node, other, self.tables[node][other][kept])
                    continue
                self.costs[other] = self.costs[other] + self._drop(node, other)[kept[0]]
                if not np.isfinite(self.costs[other]).all():
                    ready[other] = np.isfinite(self.costs[other])

    def _look(self, left: int, right: int) -> None:
        table = self.tables[left][right]
        finite = np.isfinite(table)
        rows, columns = finite.sum(1), finite.sum(0)
        if not rows.all():
            self._narrow(left, rows > 0)
        elif not columns.all():
            self._narrow(right, columns > 0)
        elif rows.max() == 1 and (columns.max() > 1 or self._size(left) >= self._size(right)):
            self._tie(right, left, finite.argmax(1))
        elif columns.max() == 1:
            self._tie(left, right, finite.argmax(0))
        elif finite.all() and np.array_equal(table[:, :1] + (table[:1] - table[0, 0]), table):
            self.costs[left] = self.costs[left] + table[:, 0]
            self.costs[right] = self.costs[right] + (table[0] - table[0, 0])
            self._drop(left, right)

    def _size(self, node: int) -> int:
        return len(self.tables[node]) + len(self.spans[node])

    def _tie(self, node: int, into: int, choice_of: _Index) -> None:
        self.steps.append(Tied(node, into, choice_of))
        self.gone.add(node)
        table = self._drop(into, node)
        self.costs[into] = self.costs[into] + table[np.arange(len(choice_of)), choice_of] + self.costs[node][choice_of]
        spans = self.spans[into]
        for span, used in self.spans[node].items():
            spans[span] = spans[span] + used[choice_of] if span in spans else used[choice_of]
        for other in list(self.tables[node]):
            self._add(into, other, self._drop(node, other)[choice_of])
        self.costs[node], self.spans[node] = self.costs[node][:0], {}


def _closed(costs: Numbers) -> Numbers:
    """Infinite where forbidden, so that sums stay so."""
    return np.where(costs >= FORBIDDEN, np.inf, costs)
