"""How axes are nested where several split one dimension: major to minor, chosen per class so that little is permuted.

Owns that choice. An axis can only be gathered or moved while it is the minor one, and two neighbours that nest their
axes differently permute their parts: whole groups of neighbours are nested alike, then single ones improve on that.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from rhino.search.costs import Costs, States, paid, stacked
from rhino.search.layout import Layout, Order
from rhino.search.problem import Transfer

_ROUNDS = 3


def nest(costs: Costs, states: Sequence[States]) -> list[Order]:
    """For each class, its axes from major to minor. Those the user pinned are as the user gave them."""
    axes = tuple(range(len(costs.sizes)))
    nesting: list[Order] = [axes for _ in states]
    free = [k for k, s in enumerate(states) if _stacks(s)]
    if not free:
        return nesting
    for k, order in _pinned(costs, states).items():
        nesting[k] = order
    pinned = _pinned(costs, states)
    touching: dict[int, list[tuple[Transfer, int]]] = {k: [] for k in free}
    for transfer, count in costs.quotient.transfers:
        for k in dict.fromkeys(end.node for end in (*transfer.sources, *transfer.targets)):
            if k in touching:
                touching[k].append((transfer, count))

    def improve(members: list[int]) -> bool:
        """The best common order of some classes, if it is better than what they have."""
        around = list({id(entry): entry for k in members for entry in touching[k]}.values())
        kept = [nesting[k] for k in members]
        best, chosen = _seconds(costs, around, states, nesting), None
        for order in permutations(axes):
            for k in members:
                nesting[k] = order
            seconds = _seconds(costs, around, states, nesting)
            if seconds < best * (1 - 1e-9):
                best, chosen = seconds, order
        for k, order in zip(members, kept, strict=True):
            nesting[k] = chosen or order
        return chosen is not None

    free = [k for k in free if k not in pinned]
    for members in _groups(costs, states, free):
        improve(members)
    for _ in range(_ROUNDS):
        if not any([improve([k]) for k in free]):
            break
    return nesting


def _seconds(
    costs: Costs, transfers: Sequence[tuple[Transfer, int]], states: Sequence[States], nesting: Sequence[Order]
) -> float:
    return sum(count * cost[0] for t, count in transfers for cost in paid(costs, t, states, nesting))


def _stacks(states: States) -> bool:
    return stacked(tuple(s - 1 for s in states))


def _pinned(costs: Costs, states: Sequence[States]) -> dict[int, Order]:
    """The orders in given shardings, the outermost of a dimension first; axes they do not stack come last."""
    problem, quotient = costs.problem, costs.quotient
    found: dict[int, Order] = {}
    names = costs.names
    for v, (_, dims) in problem.graph.pins.items():
        k = quotient.klass[problem.node_of[v]] if problem.node_of[v] >= 0 else -1
        if k < 0 or k in found or not _stacks(states[k]):
            continue
        given = [names.index(axis) for on in dims for axis in on if axis in names]
        found[k] = (*given, *(a for a in range(len(costs.sizes)) if a not in given))
    return found


def _groups(costs: Costs, states: Sequence[States], free: Sequence[int]) -> list[list[int]]:
    """Classes that exchange values on which both stack the same axes, together."""
    leader = {k: k for k in free}

    def find(k: int) -> int:
        while leader[k] != k:
            leader[k] = leader[leader[k]]
            k = leader[k]
        return k

    for transfer, _ in costs.quotient.transfers:
        for s in transfer.sources:
            for t in transfer.targets:
                if s.node in leader and t.node in leader and s.node != t.node:
                    source, target = costs.layout(s, states[s.node]), costs.layout(t, states[t.node])
                    if _stack_alike(source, target):
                        low, high = sorted((find(s.node), find(t.node)))
                        leader[high] = low
    groups: dict[int, list[int]] = {}
    for k in free:
        groups.setdefault(find(k), []).append(k)
    return list(groups.values())


def _stack_alike(source: Layout, target: Layout) -> bool:
    return any(
        source[a] == source[b] >= 0 and target[a] == target[b] >= 0
        for a in range(len(source))
        for b in range(a + 1, len(source))
    )
