"""Where two classes meet: their states by what they see of each other, what lies between, and the rows that join them.

Owns what recurs throughout a program and from one program to the next, made once; no variables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import NamedTuple

from rhino.sharding.carved import carved_seconds
from rhino.sharding.costs import Costs, States
from rhino.sharding.landing import landed_seconds
from rhino.sharding.layout import Layout
from rhino.sharding.leaving import late_seconds
from rhino.sharding.outermost import turned_seconds
from rhino.sharding.problem import REPLICATED, End, LayoutTransfer
from rhino.solver.rows import Rows

# Groups on the left and on the right.
Pair = tuple[int, int]


class Price(NamedTuple):
    """What a conversion (from, to) between two groups takes, in seconds.

    `sent_s`: what is sent, and may be hidden. `waited_s`: copies, and sums that wait until their loop is over.
    `shared`: ends that agree on it pay it once.
    """

    left: int
    right: int
    conversion: tuple[Layout, Layout]
    sent_s: float
    waited_s: float
    shared: bool


@dataclass(frozen=True, slots=True)
class Groups:
    """The states of a class in groups of those that look alike to another class: interchangeable where the two meet.

    `states` has one of each group, `sizes` how many are in it, `positions` where all of them are among the class's own,
    group by group, and `of` the group of each.
    """

    states: tuple[States, ...]
    sizes: tuple[int, ...]
    positions: tuple[int, ...]
    of: tuple[int, ...]


@lru_cache(maxsize=65536)
def alike(states: tuple[States, ...], views: tuple[Layout, ...]) -> Groups:
    """The groups of a class's states; `views` are what the ends in it see."""
    # Per state of one axis, what all ends see of it.
    seen = list(zip(*views, strict=True))
    found: dict[tuple[Layout, ...], list[int]] = {}
    for position, s in enumerate(states):
        found.setdefault(tuple([seen[state] for state in s]), []).append(position)
    groups = found.values()
    of = {position: i for i, group in enumerate(groups) for position in group}
    return Groups(
        tuple([states[group[0]] for group in groups]),
        tuple([len(group) for group in groups]),
        tuple([position for group in groups for position in group]),
        tuple([of[position] for position in range(len(states))]),
    )


@dataclass(frozen=True, slots=True)
class Prices:
    """What conversions between two ends cost, of those that are not free, and the pairs of groups that pay.

    `shared` are, by conversion, those that ends which agree on it share, and `alone` are the others; None for all.
    """

    entries: tuple[Price, ...]
    pairs: frozenset[Pair]
    alone: Prices | None = None
    shared: tuple[tuple[tuple[Layout, Layout], tuple[Pair, ...], Prices], ...] = ()

    @classmethod
    def of(cls, entries: Iterable[Price]) -> Prices:
        found = tuple(entries)
        by_conversion: dict[tuple[Layout, Layout], list[Price]] = {}
        for price in found:
            if price.shared:
                by_conversion.setdefault(price.conversion, []).append(price)
        if not by_conversion:
            return cls._whole(found)
        shared = [
            (conversion, tuple([price[:2] for price in prices]), cls._whole(tuple(prices)))
            for conversion, prices in by_conversion.items()
        ]
        alone = cls._whole(tuple([price for price in found if not price.shared]))
        return cls(found, frozenset([price[:2] for price in found]), alone, tuple(shared))

    @classmethod
    def _whole(cls, entries: tuple[Price, ...]) -> Prices:
        return cls(entries, frozenset([price[:2] for price in entries]))


def prices(
    costs: Costs,
    transfer: LayoutTransfer,
    source: End,
    target: End,
    ours: tuple[States, ...],
    theirs: tuple[States, ...],
) -> Prices:
    """The prices between two ends of a transfer.

    Args:
      ours: a state of each group at the source.
      theirs: the same at the target; the same states where that is no class, or the source's.
    """
    several = len(transfer.sources) * len(transfer.targets) > 1
    entries: list[Price] = []
    for i, j, start, end in _conversions(costs, source, target, ours, theirs):
        sent_s, steps = costs.transfer(transfer, start, end)
        late_s = late_seconds(costs, transfer, start, end, steps)
        copied_s = turned_seconds(costs, transfer, start, end) + carved_seconds(costs, transfer, start, end)
        if sent_s or copied_s:
            shared = transfer.kind != "define" or (several and costs.once(transfer, start, end))
            entries.append(Price(i, j, (start, end), sent_s - late_s, copied_s + late_s, shared))
    return Prices.of(entries)


def written(
    costs: Costs,
    transfer: LayoutTransfer,
    source: End,
    target: End,
    ours: tuple[States, ...],
    theirs: tuple[States, ...],
) -> Prices:
    """What is paid at a source because its result is written apart; arguments as of `prices`."""
    found: list[Price] = []
    for i, j, start, end in _conversions(costs, source, target, ours, theirs):
        seconds = landed_seconds(costs, source.node, transfer.value, start, end)
        if seconds:
            found.append(Price(i, j, (start, end), 0.0, seconds, False))
    return Prices.of(found)


def _conversions(
    costs: Costs, source: End, target: End, ours: tuple[States, ...], theirs: tuple[States, ...]
) -> Iterator[tuple[int, int, Layout, Layout]]:
    """The pairs of groups, and their layouts, between which something is converted."""
    alone = target.node < 0 or target.node == source.node
    replicated = (REPLICATED,) * len(costs.sizes)
    starts = [costs.layout(source, states) for states in ours]
    ends = [costs.layout(target, states) if target.node >= 0 else replicated for states in theirs]
    for i, start in enumerate(starts):
        for j, end in enumerate(ends):
            if start != end and not (alone and i != j):
                yield i, j, start, end


@dataclass(frozen=True, slots=True)
class Transport:
    """Rows that move what is chosen on the left to what is chosen on the right.

    Columns are numbered: the states on the left, group by group, those on the right, then `new` further variables. `at`
    gives, for pairs of groups, the columns whose sum is 1 where both are chosen.
    """

    new: int
    at: Mapping[Pair, tuple[int, ...]]
    rows: Rows


@lru_cache(maxsize=65536)
def transport(lefts: tuple[int, ...], rights: tuple[int, ...], priced: frozenset[Pair]) -> Transport:
    """The rows between groups of these sizes, of which some pairs are priced.

    Of the pairs that cost nothing, those of one row that is free throughout, and one of each other row, are what the
    sums leave: half of all variables need not be there.
    """
    numbers = iter(range(sum(lefts) + sum(rights)))
    xs = [tuple(next(numbers) for _ in range(n)) for n in lefts]
    ys = [tuple(next(numbers) for _ in range(n)) for n in rights]
    if len(xs) == 1:
        return Transport(0, {(0, j): y for j, y in enumerate(ys)}, Rows())
    if len(ys) == 1:
        return Transport(0, {(i, 0): x for i, x in enumerate(xs)}, Rows())
    across = range(len(ys))
    free = next((i for i in range(len(xs)) if all((i, j) not in priced for j in across)), -1)
    first = new = sum(lefts) + sum(rights)
    at: dict[Pair, tuple[int, ...]] = {}
    rows = Rows()
    # Per group on the right, what arrives there beside what is left over.
    arrived: list[list[tuple[int, float]]] = [[(v, -1.0) for v in y] for y in ys]
    for i, x in enumerate(xs):
        if i == free:
            continue
        rest = next((j for j in across if (i, j) not in priced), -1)
        sent: list[tuple[int, float]] = []
        for j in across:
            if j != rest:
                at[i, j] = (new,)
                sent.append((new, 1.0))
                arrived[j].append((new, 1.0))
                new += 1
        held = [(v, -1.0) for v in x]
        rows.add(0 if rest < 0 else -inf, 0, [*held, *sent])
        if rest >= 0:
            arrived[rest].extend((v, -c) for v, c in (*held, *sent))
    for terms in arrived:
        rows.add(0 if free < 0 else -inf, 0, terms)
    return Transport(new - first, at, rows)
