"""What the programs of a mesh have in common: states open to a class, how these group, what they cost, each made once.

Equal ones are one object, so that they are found again by identity: states are long tuples, and would be hashed for
every two classes that meet. Owns that, and which states a class may take; no variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import inf
from typing import TypeVar

from rhino.errors import RhinoError
from rhino.sharding.costs import Costs, States
from rhino.sharding.meeting import Groups, Prices, alike, prices
from rhino.sharding.pinning import Open, allows
from rhino.sharding.problem import End, LayoutTransfer, takes
from rhino.sharding.symmetry import View
from rhino.sharding.taken import is_taken, open_states

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RecurringMeeting:
    """One source and one target of a tied transfer; crossings of one `kind` cost the same in the same states.

    `alone` where there is no other class at the target.
    """

    source: End
    target: End
    alone: bool
    kind: int


@dataclass(frozen=True, slots=True)
class Parts:
    """Of a class's open states, in order: seconds of computing and of gathers in one member, the sum of the state's
    numbers, and what it stores of all arguments.
    """

    compute_s: tuple[float, ...]
    lost_s: tuple[float, ...]
    numbers: tuple[int, ...]
    stored: tuple[float, ...]


class Recurring:
    """The programs of one mesh; of those that share `Costs` there is one (`of`)."""

    # Without a reference to the costs: a cycle would keep both until the collector runs.
    def __init__(self, costs: Costs) -> None:
        # The one object for each tuple; they stay, so that their ids do.
        self._one: dict[object, object] = {}
        self._open: dict[tuple[int, tuple[int, ...], States], tuple[States, ...]] = {}
        self._groups: dict[tuple[int, int], Groups] = {}
        self._parts: dict[tuple[int, int], Parts] = {}
        self.meetings = [
            (u, w, self._same(sources), self._same(targets))
            for (u, w), (sources, targets) in costs.quotient.meetings.items()
        ]
        kinds: dict[object, int] = {}
        self.crossings = {
            transfer.index: [
                _crossing(costs, transfer, source, target, kinds)
                for source, target in product(transfer.sources, transfer.targets)
            ]
            for transfer, _ in costs.quotient.transfers
        }

    @classmethod
    def of(cls, costs: Costs) -> Recurring:
        if costs.recurring is None:
            costs.recurring = cls(costs)
        return costs.recurring

    def _same(self, value: _T) -> _T:
        return self._one.setdefault(value, value)  # type: ignore[return-value]

    def open(
        self,
        costs: Costs,
        k: int,
        axes: tuple[int, ...],
        fixed: States,
        pinned: Mapping[int, Open],
        banned: Mapping[int, frozenset[States]],
    ) -> tuple[States, ...]:
        """The states of class k that neither sizes nor what is given forbid, those of axes not in `axes` as they are.

        Raises:
          RhinoError: what is given leaves none.
        """
        key = k, axes, tuple([0 if a in axes else s for a, s in enumerate(fixed)])
        found = self._open.get(key)
        if found is None:
            found = self._open[key] = self._same(feasible(costs, k, axes, fixed))
        if k in pinned:
            found = self._same(tuple([s for s in found if allows(pinned[k], s, axes)]))
            if not found:
                raise RhinoError("a given sharding does not divide its dimension", "drop it or choose another mesh")
        if k in banned:
            found = self._same(tuple([s for s in found if s not in banned[k]]) or found)
        return found

    def groups(self, states: tuple[States, ...], views: tuple[View, ...]) -> Groups:
        """`alike`, of states from `open` and views from `meetings`."""
        key = id(states), id(views)
        found = self._groups.get(key)
        if found is None:
            made = alike(states, views)
            found = self._groups[key] = replace(made, states=self._same(made.states))
        return found

    def prices(
        self,
        costs: Costs,
        transfer: LayoutTransfer,
        crossing: RecurringMeeting,
        ours: tuple[States, ...],
        theirs: tuple[States, ...],
    ) -> Prices:
        """`prices`, of states from `open` or `groups`."""
        key = crossing.kind, id(ours), id(theirs)
        found = costs.prices.get(key)
        if found is None:
            found = costs.prices[key] = prices(costs, transfer, crossing.source, crossing.target, ours, theirs)
        return found

    def parts(self, costs: Costs, k: int, states: tuple[States, ...]) -> Parts:
        """Of states from `open`."""
        key = k, id(states)
        found = self._parts.get(key)
        if found is None:
            seconds = [costs.node_parts(k, s) for s in states]
            found = self._parts[key] = Parts(
                tuple([compute_s for compute_s, _ in seconds]),
                tuple([lost_s for _, lost_s in seconds]),
                tuple([sum(s) for s in states]),
                tuple([costs.arguments.share(k, s) for s in states]),
            )
        return found


def _crossing(
    costs: Costs, transfer: LayoutTransfer, source: End, target: End, kinds: dict[object, int]
) -> RecurringMeeting:
    alone = target.node < 0 or target.node == source.node
    # All that the costs of a conversion depend on, besides the states.
    kind = (
        transfer.kind, transfer.trips, transfer.late, costs.form(transfer), costs.sent(transfer.value),
        costs.combined(transfer),
        costs.problem.graph.values[transfer.value].shape if costs.uneven else (), costs.carving.get(transfer.index),
        costs.turning.get(transfer.index), len(transfer.sources) * len(transfer.targets) > 1, alone, target.node < 0,
        source.view, target.view,
    )  # fmt: skip
    return RecurringMeeting(source, target, alone, kinds.setdefault(kind, len(kinds)))


def size_of(
    costs: Costs,
    axes: tuple[int, ...],
    states: Sequence[States],
    pinned: Mapping[int, Open],
    banned: Mapping[int, frozenset[States]],
    enough: float = inf,
) -> int:
    """Pairs of states that meet in a program, which is about the number of its variables; counted to `enough` only."""
    recurring, total = Recurring.of(costs), 0
    open_to: dict[int, tuple[States, ...]] = {}
    for u, w, sources, targets in recurring.meetings:
        for k in (u, w):
            if k not in open_to:
                open_to[k] = recurring.open(costs, k, axes, states[k], pinned, banned)
        total += len(recurring.groups(open_to[u], sources).sizes) * len(recurring.groups(open_to[w], targets).sizes)
        if total > enough:
            break
    return total


def feasible(costs: Costs, k: int, axes: Sequence[int], fixed: States) -> tuple[States, ...]:
    """States of class k when `axes` may change: sizes divide, together with the other axes on the same dimension.

    A factor that is `entire` is split only where all axes split something.
    """
    node = costs.problem.nodes[costs.quotient.nodes[k]]
    sizes, names = costs.sizes, costs.names
    op = costs.problem.graph.ops[node.ops[0]] if node.kind == "op" else None

    def choice(axis: int) -> tuple[int, ...]:
        taken = op is not None and is_taken(op, names, sizes, axis)
        if axis not in axes and not (taken and sizes[axis] > 1):
            return (fixed[axis],)
        if sizes[axis] == 1:
            return (0,)
        return tuple(open_states(op, node, names, sizes, axis) if op is not None else range(node.states))

    choices = tuple(map(choice, range(len(sizes))))
    rule = op.rule if op is not None else None
    entire = frozenset(s for s, f in enumerate(node.factors, 1) if rule is not None and f in rule.entire)
    return _combinations(choices, sizes, node.limits, node.uneven, entire)


@lru_cache(maxsize=65536)
def _combinations(
    choices: tuple[tuple[int, ...], ...],
    sizes: tuple[int, ...],
    limits: tuple[int, ...],
    uneven: tuple[bool, ...],
    entire: frozenset[int],
) -> tuple[States, ...]:
    def divides(states: States) -> bool:
        parts: dict[int, tuple[int, ...]] = {}
        for s, n in zip(states, sizes, strict=True):
            if s > 0 and n > 1:
                parts[s] = (*parts.get(s, ()), n)
        return all(takes(limits, uneven, s, axes) for s, axes in parts.items())

    def complete(states: States) -> bool:
        return entire.isdisjoint(states) or all(s > 0 for n, s in zip(sizes, states, strict=True) if n > 1)

    return tuple(states for states in product(*choices) if divides(states) and complete(states))
