"""Where the forward pass is cut into segments: at narrow places, so that keeping what crosses them takes least memory,
and where little has to be made again.

Owns the choice of the places, by dynamic programming. Knows nothing of what is done in a segment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

# Limits tried for the largest segment, and how many places one may be long.
_LIMITS, _LONGEST = 24, 48
# All arithmetic of products is worth this share of all that is held.
_AGAIN = 1 / 8


@dataclass(frozen=True, slots=True)
class Holding:
    """A value that the forward pass makes at one position and reads last at another; `held`: the backward reads it."""

    first: int
    last: int
    nbytes: int
    held: bool


def cut_points(spans: Sequence[Holding], flops: Sequence[int], least: int = 0) -> list[int]:
    """The positions after which the forward pass is cut, so that crossing values, the largest segment and what is made
    again cost least.

    With all segments but the last computed again, the forward pass leaves what crosses a cut, each value once, and the
    backward pass holds beside it what one segment keeps: `sum over cuts of crossing bytes + max over segments of held
    bytes`. The last product of a segment makes what is kept, so that it is not done again: all others cost an eighth of
    all bytes held, by their share of the arithmetic. For each of some limits on a segment the shortest path through the
    places has the least of the rest. The last cut is in front of the last product: what the backward pass begins with
    is there beside the last segment.

    Args:
      spans: of all values that cost memory.
      flops: by position, of its products; between two positions that have any only the narrowest place is looked at.
      least: bytes that are there beside the crossing values at one time in any case, such as logits and their gradient.
    """
    count = len(flops)
    crossing = _crossing(spans, count)
    places = _narrow(crossing, [n > 0 for n in flops])
    if not places:
        return []
    ends = [-1, *places, count - 1]
    lives = [[s for s in spans if s.first <= p < s.last] for p in ends]
    kept = [0] * (count + 1)
    for s in spans:
        if s.held:
            kept[s.first + 1] += s.nbytes
    prefix = list(accumulate(kept))
    done = list(accumulate(flops, initial=0))
    last = [0]  # by position, of the last product so far
    for n in flops:
        last.append(n or last[-1])
    worth = _AGAIN * prefix[-1] / max(1, done[-1])

    def edge(i: int, j: int) -> tuple[int, int]:
        """What newly crosses the end of a segment and what it makes again, in bytes, and what it holds besides."""
        a, b = ends[i] + 1, ends[j] + 1
        new = [s for s in lives[j] if s.first >= a]
        held = prefix[b] - prefix[a] - sum(s.nbytes for s in new if s.held)
        # Between two places there is a product.
        again = done[b] - done[a] - last[b] if j < len(ends) - 1 else 0
        return sum(s.nbytes for s in new) + round(worth * again), held

    edges = {
        (i, j): edge(i, j) for j in range(1, len(ends)) for i in range(max(0, j - _LONGEST), j)
    }  # fmt: skip
    limits = sorted({held for _, held in edges.values()})
    limits = limits[:: max(1, len(limits) // _LIMITS)]
    best: tuple[int, int, list[int]] | None = None
    for limit in limits:
        path = _shortest(len(ends) - 1, edges, limit)
        if path is None:
            continue
        path.append(len(ends) - 1)
        steps = [edges[step] for step in pairwise(path)]
        total = sum(cost for cost, _ in steps[:-1]) + max(least, *(held for _, held in steps))
        if best is None or (total, len(path)) < best[:2]:
            best = (total, len(path), path)
    return [ends[i] for i in best[2][1:-1]] if best is not None else []


def _crossing(spans: Sequence[Holding], count: int) -> list[int]:
    """Bytes that are made at or before each position and read after it."""
    changes = [0] * (count + 1)
    for s in spans:
        if s.last > s.first:
            changes[s.first] += s.nbytes
            changes[s.last] -= s.nbytes
    return list(accumulate(changes))[:count]


def _narrow(crossing: Sequence[int], heavy: Sequence[bool]) -> list[int]:
    """The narrowest place between any two products, if no neighbour of these is narrower."""
    found: list[int] = []
    best = -1
    seen = False
    for p, is_heavy in enumerate(heavy):
        if is_heavy:
            if seen and best >= 0:
                found.append(best)
            best, seen = p, True
        elif best < 0 or crossing[p] <= crossing[best]:
            best = p
    widths = [crossing[p] for p in found]
    return [
        p
        for k, p in enumerate(found)
        if k == len(found) - 1 or all(widths[k] <= widths[n] for n in (k - 1, k + 1) if n >= 0)
    ]


def _shortest(count: int, edges: Mapping[tuple[int, int], tuple[int, int]], limit: int) -> list[int] | None:
    """The way that costs least over segments within a limit, of equal ones the shortest."""
    reached: list[tuple[int, int, int] | None] = [(0, 0, -1)] + [None] * (count - 1)
    for j in range(1, count):
        for i in range(max(0, j - _LONGEST), j):
            before, (cost, held) = reached[i], edges[i, j]
            if before is None or held > limit:
                continue
            found = (before[0] + cost, before[1] + 1, i)
            known = reached[j]
            if known is None or found < known:
                reached[j] = found
    if reached[-1] is None:
        return None
    path = [count - 1]
    while (at := reached[path[-1]]) is not None and at[2] >= 0:
        path.append(at[2])
    return path[::-1]
