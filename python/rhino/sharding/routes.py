"""Changing where the parts of a whole value are: the cheapest route of steps that XLA takes one collective each.

Owns the elementary steps (slice, gather, all-to-all, permute) and the shortest path through them. XLA's own way between
two layouts is at times longer, or gathers everything; a plan names the stops, and then it takes this one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations, product
from math import prod

from rhino.machine.collectives import ring_bytes
from rhino.sharding.uneven import Odd, padded

Layout = tuple[int, ...]
# Axes from major to minor.
Order = tuple[int, ...]
# (dimension, axes that split it, major first), by dimension.
Placed = tuple[tuple[int, Order], ...]

# What a collective costs beside its bytes: fewer steps are better.
_STEP = 1e-6


@dataclass(slots=True, frozen=True)
class RouteStep:
    """One collective: its kind, the mesh axes it runs over, and the bytes of the full tensor within its group.

    Those of a collective-permute are of one device's part.
    """

    kind: str
    axes: tuple[int, ...]
    nbytes: float

    def scaled(self, factor: float) -> RouteStep:
        """The same step for `factor` times the bytes."""
        return RouteStep(self.kind, self.axes, self.nbytes * factor)

    def result_bytes(self, sizes: Sequence[int]) -> float:
        """Bytes of its result, by which XLA limits what it combines; `sizes` are the mesh's."""
        return self.nbytes / (prod(sizes[a] for a in self.axes) if self.kind == "reduce-scatter" else 1)


@dataclass(slots=True, frozen=True)
class Route:
    """The collectives of a conversion, for one byte.

    `left` is where the value is once it is whole (its start, unless it was partial), `stops` the layouts it goes
    through from there, the last one included; none if that is where it is wanted.
    """

    cost: float
    steps: tuple[RouteStep, ...]
    left: Placed
    stops: tuple[Placed, ...]


def local(placed: Placed, sizes: Sequence[int], odd: Odd = ()) -> float:
    """The part of a value that one device holds, padding included."""
    return padded(odd, placed, sizes) / prod(sizes[a] for _, axes in placed for a in axes)


def weight(step: RouteStep, sizes: Sequence[int], weights: Sequence[float]) -> float:
    """The cost of a step: the bytes it sends, weighed by the slowest of its axes."""
    sent = ring_bytes(step.kind, prod(sizes[a] for a in step.axes), step.nbytes)
    return sent * max(weights[a] for a in step.axes) + _STEP


def placements(layout: Layout, order: Order | None) -> list[Placed]:
    """A layout with its axes in a given order, or in every order."""
    dims = sorted({s for s in layout if s >= 0})
    groups = [[a for a, s in enumerate(layout) if s == d] for d in dims]
    if order is not None:
        return [tuple((d, tuple(sorted(g, key=order.index))) for d, g in zip(dims, groups, strict=True))]
    return [tuple(zip(dims, chosen, strict=True)) for chosen in product(*(permutations(g) for g in groups))]


def cheapest(
    start: Placed,
    goals: Sequence[Placed],
    source: Layout,
    target: Layout,
    sizes: tuple[int, ...],
    weights: tuple[float, ...],
    odd: Odd = (),
) -> Route:
    """The shortest path from `start` to any of `goals` through layouts whose splits occur in `source` or `target`."""
    if start in goals:
        return Route(0.0, (), start, ())
    names: dict[int, int] = {}
    for d in (*(d for d, _ in start), *source, *target):
        if d >= 0:
            names.setdefault(d, len(names))
    back = list(names)

    def rename(placed: Placed) -> Placed:
        return tuple(sorted((names[d], axes) for d, axes in placed))

    def relayout(layout: Layout) -> Layout:
        return tuple(names.get(s, s) for s in layout)

    # Dimensions are alike: most conversions of a program are one of few.
    cost, steps, stops = _search(
        rename(start), tuple(map(rename, goals)), relayout(source), relayout(target), sizes, weights,
        tuple((names[d], size) for d, size in odd),
    )  # fmt: skip
    return Route(cost, steps, start, tuple(tuple(sorted((back[d], axes) for d, axes in p)) for p in stops))


@lru_cache(maxsize=65536)
def _search(
    start: Placed,
    goals: tuple[Placed, ...],
    source: Layout,
    target: Layout,
    sizes: tuple[int, ...],
    weights: tuple[float, ...],
    odd: Odd,
) -> tuple[float, tuple[RouteStep, ...], tuple[Placed, ...]]:
    best: dict[Placed, float] = {start: 0.0}
    came: dict[Placed, tuple[Placed, RouteStep | None]] = {}
    queue: list[tuple[float, Placed]] = [(0.0, start)]
    while queue:
        cost, now = heapq.heappop(queue)
        if cost > best[now]:
            continue
        if now in goals:
            return cost, *_trace(start, now, came)
        for step, after in _moves(now, goals, source, target, sizes, odd):
            # A slice sends nothing, but is a stop.
            total = cost + (weight(step, sizes, weights) if step else _STEP / 1000)
            if total < best.get(after, float("inf")):
                best[after] = total
                came[after] = (now, step)
                heapq.heappush(queue, (total, after))
    raise AssertionError("every layout can be gathered and sliced into any other")


def _trace(
    start: Placed, end: Placed, came: dict[Placed, tuple[Placed, RouteStep | None]]
) -> tuple[tuple[RouteStep, ...], tuple[Placed, ...]]:
    steps: list[RouteStep] = []
    stops: list[Placed] = []
    sliced = False
    while end != start:
        before, step = came[end]
        # Slices in a row are one stop.
        if not (step is None and sliced):
            stops.append(end)
        sliced = step is None
        if step is not None:
            steps.append(step)
        end = before
    return tuple(reversed(steps)), tuple(reversed(stops))


def _moves(
    now: Placed, goals: tuple[Placed, ...], source: Layout, target: Layout, sizes: tuple[int, ...], odd: Odd
) -> Iterator[tuple[RouteStep | None, Placed]]:
    """What one step can make of a layout; None is a slice."""
    held = dict(now)
    used = {a for axes in held.values() for a in axes}
    part = local(now, sizes, odd)

    def divides(d: int, axes: Order) -> bool:
        return all(target[a] == d for a in axes) or all(source[a] == d for a in axes)

    def made(changes: dict[int, Order]) -> Placed:
        return tuple(sorted((d, axes) for d, axes in (held | changes).items() if axes))

    for a, d in enumerate(target):
        if d >= 0 and a not in used and divides(d, (*held.get(d, ()), a)):
            yield None, made({d: (*held.get(d, ()), a)})
    for d, axes in held.items():
        for k in range(len(axes)):
            # Only minor axes can go without the other parts changing places.
            stay, go = axes[:k], axes[k:]
            whole = part * prod(sizes[a] for a in go)
            yield RouteStep("all-gather", tuple(sorted(go)), whole), made({d: stay})
            to = target[axes[k]]
            # Two axes at once XLA moves one by one, and not always.
            if len(go) == 1 and to not in (d, -1) and divides(to, (*held.get(to, ()), *go)):
                wide = whole * padded(odd, [(to, go)], sizes)
                yield RouteStep("all-to-all", go, wide), made({d: stay, to: (*held.get(to, ()), *go)})
        for other in permutations(axes):
            if other != axes:
                yield _permute(axes, part), made({d: other})
        for k, a in enumerate(axes):
            # An axis that holds copies takes the place of one of its size.
            for b, wanted in enumerate(target):
                if b not in used and wanted == d and sizes[a] == sizes[b] and target[a] != d:
                    yield _permute((a, b), part), made({d: (*axes[:k], b, *axes[k + 1 :])})
    for goal in goals:
        if goal != now and _parts(goal, sizes) == _parts(now, sizes):
            yield _permute(tuple(used), part), goal


def _permute(axes: Sequence[int], part: float) -> RouteStep:
    return RouteStep("collective-permute", tuple(sorted(axes)), part)


def _parts(placed: Placed, sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    return [(d, prod(sizes[a] for a in axes)) for d, axes in placed]
