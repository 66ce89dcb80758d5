"""How axes are nested where several split one dimension: major to minor, chosen per class so that little is permuted.

Owns that choice. An axis can only be gathered or moved while it is the minor one, and two neighbours that nest their
axes differently permute their parts: whole groups of neighbours are nested alike, then single ones improve on that.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

from rhino.program.disjoint import DisjointSets
from rhino.sharding.costs import Costs, States
from rhino.sharding.layout import Layout, Order, stacked
from rhino.sharding.pinning import deciding
from rhino.sharding.problem import REPLICATED, LayoutTransfer
from rhino.sharding.taken import order_of

_ROUNDS = 3


def nest(costs: Costs, states: Sequence[States]) -> list[Order]:
    """For each class, its axes from major to minor. Those the user pinned are as the user gave them."""
    axes = tuple(range(len(costs.sizes)))
    nesting: list[Order] = [axes for _ in states]
    taken = _taken(costs)
    for k, order in taken.items():
        nesting[k] = order
    free = [k for k, s in enumerate(states) if stacks(s)]
    if not free:
        return nesting
    pinned = {**_pinned(costs, states), **taken}
    for k, order in pinned.items():
        nesting[k] = order
    touching: dict[int, list[_Conversion]] = {k: [] for k in free}
    for conversion in _conversions(costs, states, touching):
        for k in dict.fromkeys((conversion.source_class, conversion.target_class)):
            if k in touching:
                touching[k].append(conversion)

    def seconds(around: Sequence[_Conversion]) -> float:
        total = 0.0
        for c in around:
            orders = costs.orders(c.transfer, c.source_class, c.target_class, c.source, c.target, states, nesting)
            total += c.count * costs.transfer(c.transfer, c.source, c.target, orders)[0]
        return total

    def improve(members: list[int]) -> bool:
        """The best common order of some classes, if it is better than what they have."""
        around = list({id(entry): entry for k in members for entry in touching[k]}.values())
        kept = [nesting[k] for k in members]
        best, chosen = seconds(around), None
        for order in _orders(axes, {a for k in members for a in _stacked_axes(states[k])}):
            for k in members:
                nesting[k] = order
            found = seconds(around)
            if found < best * (1 - 1e-9):
                best, chosen = found, order
        for k, order in zip(members, kept, strict=True):
            nesting[k] = chosen or order
        return chosen is not None

    free = [k for k in free if k not in pinned]
    for members in _groups(costs, states, free):
        improve(members)
    for _ in range(_ROUNDS):
        improved = [improve([k]) for k in free]
        if True not in improved:
            break
    return nesting


@dataclass(slots=True)
class _Conversion:
    """What all equal conversions of one transfer have in common, and how many there are."""

    transfer: LayoutTransfer
    source_class: int
    target_class: int
    source: Layout
    target: Layout
    count: int


def _conversions(costs: Costs, states: Sequence[States], classes: Container[int]) -> Iterator[_Conversion]:
    """The conversions that touch one of some classes."""
    replicated = (REPLICATED,) * len(costs.sizes)
    for transfer, count in costs.quotient.transfers:
        found: dict[tuple[int, int, Layout, Layout], _Conversion] = {}
        for s in transfer.sources:
            for t in transfer.targets:
                if s.node not in classes and t.node not in classes:
                    continue
                source = costs.layout(s, states[s.node])
                target = costs.layout(t, states[t.node]) if t.node >= 0 else replicated
                key = (s.node, t.node, source, target)
                if key not in found:
                    found[key] = _Conversion(transfer, s.node, t.node, source, target, count)
                elif not costs.once(transfer, source, target):
                    found[key].count += count
        yield from found.values()


def _orders(axes: Order, matter: set[int]) -> list[Order]:
    """The orders of axes that differ in how those that matter follow each other."""
    slots = [i for i, a in enumerate(axes) if a in matter]
    found = []
    for chosen in permutations(sorted(matter)):
        order = list(axes)
        for i, a in zip(slots, chosen, strict=True):
            order[i] = a
        found.append(tuple(order))
    return found


def _stacked_axes(states: States) -> list[int]:
    return [a for a, s in enumerate(states) if s > 0 and states.count(s) > 1]


def stacks(states: States) -> bool:
    """Whether several axes split one dimension."""
    return stacked(tuple(s - 1 for s in states))


def _pinned(costs: Costs, states: Sequence[States]) -> dict[int, Order]:
    """The orders in given shardings, the outermost of a dimension first; axes they do not stack come last."""
    problem, quotient = costs.problem, costs.quotient
    found: dict[int, Order] = {}
    names = costs.names
    nodes = deciding(problem)
    for v, (_, dims) in problem.graph.pins.items():
        holding = [problem.node_of[v], nodes.get(problem.graph.values[v].producer, -1)]
        classes = [quotient.klass[n] for n in holding if n >= 0]
        classes = [k for k in classes if k not in found and stacks(states[k])]
        if not classes:
            continue
        given = [names.index(axis) for on in dims for axis in on if axis in names]
        order = (*given, *(a for a in range(len(costs.sizes)) if a not in given))
        found.update(dict.fromkeys(classes, order))
    return found


def _taken(costs: Costs) -> dict[int, Order]:
    """The orders in operations that take axes for themselves."""
    problem, klass = costs.problem, costs.quotient.klass
    found: dict[int, Order] = {}
    for node in problem.nodes:
        op = problem.graph.ops[node.ops[0]] if node.kind == "op" else None
        order = order_of(op, costs.names) if op is not None else None
        if order is not None:
            found.setdefault(klass[node.index], order)
    return found


def _groups(costs: Costs, states: Sequence[States], free: Sequence[int]) -> list[list[int]]:
    """Classes that exchange values on which both stack the same axes, together."""
    sets, among = DisjointSets(len(states)), frozenset(free)
    for transfer, _ in costs.quotient.transfers:
        for s in transfer.sources:
            for t in transfer.targets:
                if s.node in among and t.node in among and s.node != t.node:
                    source, target = costs.layout(s, states[s.node]), costs.layout(t, states[t.node])
                    if _stack_alike(source, target):
                        sets.join(s.node, t.node)
    groups: dict[int, list[int]] = {}
    for k in free:
        groups.setdefault(sets.find(k), []).append(k)
    return list(groups.values())


def _stack_alike(source: Layout, target: Layout) -> bool:
    return any(
        source[a] == source[b] >= 0 and target[a] == target[b] >= 0
        for a in range(len(source))
        for b in range(a + 1, len(source))
    )
