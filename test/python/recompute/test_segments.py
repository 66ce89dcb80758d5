"""Where the forward pass is cut: by brute force on random passes, and on repeated layers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from rhino.recompute.segments import Holding, cut_points


def cost(spans: Sequence[Holding], flops: Sequence[int], points: Sequence[int], least: int) -> float:
    """As the docstring of `cut_points` says: what crosses, each value once, the largest segment, what is done again."""
    crossing = {k for k, s in enumerate(spans) for p in points if s.first <= p < s.last}
    edges = [-1, *points, len(flops) - 1]
    held = [
        sum(s.nbytes for k, s in enumerate(spans) if s.held and k not in crossing and a < s.first <= b)
        for a, b in itertools.pairwise(edges)
    ]
    # A product at each position: that at the end of a segment is not done again, and nothing of the last segment.
    again = sum(sum(flops[a + 1 : b]) for a, b in itertools.pairwise(edges[:-1]))
    worth = sum(s.nbytes for s in spans if s.held) / 8 / sum(flops)
    return sum(spans[k].nbytes for k in crossing) + max(least, *held) + worth * again


@pytest.mark.parametrize("seed", range(60))
def test_cuts_are_as_good_as_any(seed: int) -> None:
    # A product at each position: all places between two are candidates, if no neighbour is narrower.
    draw = random.Random(seed)
    count = draw.randint(3, 8)
    spans = [Holding(p, p + 1, 4000, held=False) for p in range(count - 1)]
    spans += [Holding(p, p, draw.randint(0, 30000), held=True) for p in range(count)]
    flops = [draw.randint(1, 10) for _ in range(count)]
    least = draw.randint(0, 20000)
    found = cut_points(spans, flops, least)
    # One cut is in front of the last product.
    assert found[-1] == count - 2
    places = range(count - 2)
    every = [(*some, count - 2) for n in range(count - 1) for some in itertools.combinations(places, n)]
    # Within rounding, to a byte for each segment.
    assert cost(spans, flops, found, least) <= min(cost(spans, flops, points, least) for points in every) + count


def test_layers_are_cut_where_they_are_narrow() -> None:
    # Each layer: a product that makes 1 wide value, a product that makes a narrow one, and the head.
    spans, flops = [], []
    for layer in range(6):
        spans += [
            Holding(2 * layer, 2 * layer + 1, 400, held=True),
            Holding(2 * layer + 1, 2 * layer + 2, 100, held=True),
        ]
        flops += [3, 3]
    assert cut_points(spans, [*flops, 3]) == [1, 3, 5, 7, 9, 11]


def test_equally_narrow_places_are_taken_by_what_is_made_again() -> None:
    # Each layer: a small product, then a large one, each of which makes a narrow value and holds a wide one.
    spans = [Holding(p, p + 1, 100, held=True) for p in range(12)] + [Holding(p, p, 300, held=True) for p in range(12)]
    # After the large ones, which are not made again so.
    assert cut_points(spans, [*[1, 8] * 6, 1]) == [1, 3, 5, 7, 9, 11]
    assert cut_points(spans, [*[8, 1] * 6, 1]) == [0, 2, 4, 6, 8, 10, 11]


def test_without_products_there_is_nothing_to_cut() -> None:
    assert cut_points([Holding(0, 1, 8, held=True)], [0, 0]) == []
