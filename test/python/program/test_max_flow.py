"""Minimum cuts against all cuts of small graphs."""

from __future__ import annotations

import itertools
import random

import pytest

from rhino.program.max_flow import FlowGraph


@pytest.mark.parametrize("seed", range(40))
def test_the_cut_is_the_cheapest_of_all(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randint(2, 8)
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    edges = [(a, b, draw.randint(0, 9)) for a, b in draw.sample(pairs, draw.randint(1, len(pairs)))]
    flow = FlowGraph(count)
    for edge in edges:
        flow.add(*edge)

    def cost(source: set[int]) -> int:
        return sum(c for a, b, c in edges if a in source and b not in source)

    every = [{0, *some} for n in range(count - 1) for some in itertools.combinations(range(2, count), n)]
    assert flow.maximise() == min(map(cost, every))
    found = {node for node, reached in enumerate(flow.reached()) if reached}
    assert cost(found) == min(map(cost, every))
    # Of all cheapest cuts the one nearest to the source.
    assert all(found <= source for source in every if cost(source) == cost(found))
