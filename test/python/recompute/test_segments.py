"""Where the forward pass is cut: by brute force on random passes, and on repeated layers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from rhino.recompute.segments import Holding, cut_points


def cost(spans: Sequence[Holding], count: int, points: Sequence[int], least: int) -> int:
    """What the docstring of `cut_points` says: bytes that cross, each value once, and the largest segment."""
    crossing = {k for k, s in enumerate(spans) for p in points if s.first <= p < s.last}
    edges = [-1, *points, count - 1]
    held = [
        sum(s.nbytes for k, s in enumerate(spans) if s.held and k not in crossing and a < s.first <= b)
        for a, b in itertools.pairwise(edges)
    ]
    return sum(spans[k].nbytes for k in crossing) + max(least, *held)


@pytest.mark.parametrize("seed", range(60))
def test_cuts_are_as_good_as_any(seed: int) -> None:
    # A product at each position: all places between two are candidates, if no neighbour is narrower.
    draw = random.Random(seed)
    count = draw.randint(3, 8)
    spans = [Holding(p, p + 1, 4, held=False) for p in range(count - 1)]
    spans += [Holding(p, p, draw.randint(0, 30), held=True) for p in range(count)]
    least = draw.randint(0, 20)
    found = cut_points(spans, [True] * count, least)
    # One cut is in front of the last product.
    assert found[-1] == count - 2
    places = range(count - 2)
    every = [(*some, count - 2) for n in range(count - 1) for some in itertools.combinations(places, n)]
    assert cost(spans, count, found, least) == min(cost(spans, count, points, least) for points in every)


def test_layers_are_cut_where_they_are_narrow() -> None:
    # Each layer: a product that makes 1 wide value, a product that makes a narrow one, and the head.
    spans, heavy = [], []
    for layer in range(6):
        spans += [
            Holding(2 * layer, 2 * layer + 1, 400, held=True),
            Holding(2 * layer + 1, 2 * layer + 2, 100, held=True),
        ]
        heavy += [True, True]
    assert cut_points(spans, [*heavy, True]) == [1, 3, 5, 7, 9, 11]


def test_without_products_there_is_nothing_to_cut() -> None:
    assert cut_points([Holding(0, 1, 8, held=True)], [False, False]) == []
