"""The answer of the search: a mesh, and the layout of every value on it.

Owns how states are read back as axes per dimension. Chooses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from rhino.graph.data import Dims
from rhino.search.costs import Costs, States
from rhino.search.evaluate import Copy, Prediction, copies, outputs, persistent_classes
from rhino.search.layout import Layout
from rhino.search.problem import Problem


@dataclass(frozen=True, slots=True)
class Alternative:
    """A candidate that lost, and why."""

    name: str
    step_time_s: float
    peak_bytes: int
    why: str


@dataclass
class Solution:
    """The chosen plan. `mesh` is (axis, size) pairs, outermost first; `seconds` the time the search took.

    `gap` is the relative distance of the predicted step time to a bound no plan can beat: all compute divided
    perfectly, and no communication.
    """

    mesh: tuple[tuple[str, int], ...]
    level: str
    predicted: Prediction
    alternatives: tuple[Alternative, ...]
    candidates: int
    gap: float
    seconds: float
    problem: Problem
    costs: Costs
    states: tuple[States, ...]
    phases: dict[str, float] = field(default_factory=dict)

    def dims(self, value: int) -> Dims | None:
        """Axes per dimension of a value, outermost first; None where any layout will do."""
        problem = self.problem
        if value in problem.graph.pins:
            # The order of axes on one dimension is the user's too.
            return problem.graph.pins[value][1]
        n = problem.node_of[value]
        if n < 0:
            return None if problem.graph.values[value].shape else ()
        states = self.states[self.costs.quotient.klass[n]]
        view = problem.view(value)
        return self._named(value, tuple(view[s] for s in states))

    def copies(self) -> list[tuple[Copy, Dims]]:
        """Values that some readers need in another layout than the one they are kept in."""
        return [(copy, self._named(copy.value, copy.layout)) for copy in copies(self.costs, self.states)]

    def outputs(self) -> dict[int, Dims]:
        """Values that their op leaves in another layout than the one they are kept in."""
        return {v: self._named(v, layout) for v, layout in outputs(self.costs, self.states)}

    def _named(self, value: int, layout: Layout) -> Dims:
        rank = len(self.problem.graph.values[value].shape)
        order = self._orders[self.costs.quotient.klass[self.problem.node_of[value]]]
        return tuple(tuple(self.mesh[a][0] for a in order if layout[a] == d) for d in range(rank))

    @cached_property
    def _orders(self) -> list[tuple[int, ...]]:
        return axis_orders(self.costs, self.states)


def axis_orders(costs: Costs, states: tuple[States, ...]) -> list[tuple[int, ...]]:
    """For each class, its axes from major to minor where several shard one dimension.

    The axis over which a parameter is gathered (or its gradient scattered) while another one stays has to be the minor
    one: removing a major axis makes XLA permute the shards first. Other cones keep the mesh's order, so that they
    agree with each other.
    """
    axes = range(len(costs.sizes))
    ordered = persistent_classes(costs)
    votes = [[0 for _ in axes] for _ in states]
    for transfer, count in costs.quotient.transfers:
        pairs = [(s, t) for s in transfer.sources for t in transfer.targets if t.node >= 0]
        for s, t in pairs:
            source, target = costs.layout(s, states[s.node]), costs.layout(t, states[t.node])
            for k, here, there in ((s.node, source, target), (t.node, target, source)):
                if k in ordered:
                    for a in axes:
                        votes[k][a] += count * _leaves_alone(here, there, a)
    return [tuple(sorted(axes, key=vote.__getitem__)) for vote in votes]


def _leaves_alone(here: Layout, there: Layout, a: int) -> bool:
    """Whether axis a leaves a dimension that another axis goes on sharding."""
    if here[a] < 0 or there[a] == here[a]:
        return False
    return any(b != a and here[b] == here[a] == there[b] for b in range(len(here)))
