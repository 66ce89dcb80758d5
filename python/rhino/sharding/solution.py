"""The answer of the search: a mesh, and the layout of every value on it.

Owns how states are read back as axes per dimension. Chooses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from rhino.program.alternative import Alternative
from rhino.program.data import Dims
from rhino.sharding.converted import ConvertedCopy, copies, outputs
from rhino.sharding.costs import Costs, States
from rhino.sharding.evaluate import Prediction
from rhino.sharding.layout import Layout, Order, Placed
from rhino.sharding.nesting import nest
from rhino.sharding.problem import Node, Problem
from rhino.sharding.returning import returns
from rhino.sharding.routes import placements
from rhino.sharding.uneven import even_operands


@dataclass
class Solution:
    """The chosen plan. `mesh` is (axis, size) pairs, outermost first; `seconds` the time the search took.

    `gap` is how far the predicted step time is above a bound no plan can beat, relatively: all compute divided
    perfectly, and no communication. `costly` is whether the step's fastest plan did not fit, and this one loses more
    than a third of its time to something else than its computing divided perfectly.
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
    costly: bool = False
    # Layouts by class, and the classes of the value's dimensions.
    _known: dict[tuple[int, tuple[int, ...]], Dims] = field(default_factory=dict, init=False, repr=False)

    def dims(self, value: int) -> Dims | None:
        """Axes per dimension of a value, outermost first; None where any layout will do."""
        problem = self.problem
        n = problem.node_of[value]
        pinned = problem.graph.pins.get(value)
        if pinned is not None and (n < 0 or self._is(value, pinned[1])):
            # The order of axes on one dimension is the user's too.
            return pinned[1]
        if n < 0:
            shape = problem.graph.values[value].shape
            return ((),) * len(shape) if 0 in shape or not shape else None
        k = self.costs.quotient.klass[n]
        alike = k, problem.classes[value]
        found = self._known.get(alike)
        if found is None:
            view = problem.view(value)
            found = self._known[alike] = self._named(value, tuple([view[s] for s in self.states[k]]))
        return found

    def _is(self, value: int, dims: Dims) -> bool:
        """Whether a value is split by these axes, in whatever order."""
        n = self.problem.node_of[value]
        view, states = self.problem.view(value), self.states[self.costs.quotient.klass[n]]
        found = {(axis, view[s]) for (axis, _), s in zip(self.mesh, states, strict=True) if s > 0 and view[s] >= 0}
        return found == {(axis, d) for d, axes in enumerate(dims) for axis in axes}

    def factors(self, op: int) -> tuple[tuple[str, ...], ...]:
        """For an op with a decision of its own, the axes that split each factor of its rule, outermost first."""
        problem = self.problem
        node = problem.nodes[self.op_nodes[op]]
        rule = problem.graph.ops[op].rule
        assert rule is not None
        k = self.costs.quotient.klass[node.index]
        found: list[tuple[str, ...]] = [()] * len(rule.factor_sizes)
        for a in self.nesting[k]:
            if self.states[k][a] > 0:
                found[node.factors[self.states[k][a] - 1]] += (self.mesh[a][0],)
        return tuple(found)

    @cached_property
    def loose(self) -> list[tuple[int, int]]:
        """Operands, as (op, position), that any layout suits and that XLA must not split into parts that differ.

        It would where another op reads them so, and some ops are then wrong.
        """
        graph, node_of = self.problem.graph, self.problem.node_of
        if not any(map(self._is_uneven, self.problem.nodes)):
            return []
        return [
            (op.index, slot)
            for op in graph.ops
            if not op.ties and op.manual is None
            for slot in even_operands(graph, op)
            if node_of[op.operands[slot]] < 0 and graph.values[op.operands[slot]].shape
        ]

    def _is_uneven(self, node: Node) -> bool:
        states = self.states[self.costs.quotient.klass[node.index]]
        return any(s > 0 and node.limits[s - 1] % n for (_, n), s in zip(self.mesh, states, strict=True))

    @cached_property
    def op_nodes(self) -> dict[int, int]:
        """The node of each op that decides for itself."""
        return {node.ops[0]: node.index for node in self.problem.nodes if node.kind == "op"}

    def copies(self) -> list[tuple[ConvertedCopy, tuple[Dims, ...]]]:
        """Values that some readers need in another layout than the one they are kept in, and the layouts on the way."""
        found = copies(self.costs, self.states, self.nesting)
        return [(copy, tuple(self.spelled(copy.value, stop) for stop in copy.stops)) for copy in found]

    def outputs(self) -> dict[int, tuple[Dims, ...]]:
        """Values that their op leaves in another layout than the one they are kept in, and the layouts on the way."""
        found = outputs(self.costs, self.states, self.nesting)
        return {v: tuple(self.spelled(v, stop) for stop in stops) for v, stops in found}

    def returned(self, value: int) -> Dims | None:
        """Axes per dimension of a result, as the step returns it; None where any layout will do."""
        return self.dims(self.problem.returned.get(value, value))

    def returns(self) -> dict[int, tuple[Dims, ...]]:
        """Results that are returned in another layout than they are made in, and the layouts on the way."""
        found = returns(self.costs, self.states, self.nesting)
        return {v: tuple(self.spelled(v, stop) for stop in stops) for v, stops in found}

    @cached_property
    def nesting(self) -> list[Order]:
        """For each class, its axes from major to minor where several split one dimension."""
        return nest(self.costs, self.states)

    def _named(self, value: int, layout: Layout) -> Dims:
        order = self.nesting[self.costs.quotient.klass[self.problem.node_of[value]]]
        return self.spelled(value, placements(layout, order)[0])

    def spelled(self, value: int, placed: Placed) -> Dims:
        """Axes per dimension of a value that is placed so."""
        held = dict(placed)
        rank = len(self.problem.graph.values[value].shape)
        return tuple(tuple(self.mesh[a][0] for a in held.get(d, ())) for d in range(rank))
