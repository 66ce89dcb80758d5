"""Matchings carry every load in the time of the busiest port."""

from __future__ import annotations

from random import Random

import pytest

from rhino.reshard.matchings import matchings, port_load


def check(weights: dict[tuple[int, int], int]) -> int:
    found = matchings(weights)
    carried = dict.fromkeys(weights, 0)
    for length, edges in found:
        assert length > 0
        assert len({source for source, _ in edges}) == len({target for _, target in edges}) == len(edges) > 0
        for edge in edges:
            carried[edge] += length
    assert carried == weights
    assert sum(length for length, _ in found) == port_load(weights)
    return len(found)


def test_any_loads() -> None:
    for seed in range(200):
        random = Random(seed)
        sources, targets = random.randint(1, 8), random.randint(1, 8)
        weights = {
            (source, target): random.choice((1, 5, random.randint(1, 1000)))
            for source in range(sources)
            for target in range(targets)
            if random.random() < 0.7
        }
        # Each matching finishes an edge, or makes one more port one of the busiest.
        assert check(weights) <= len(weights) + sources + targets


@pytest.mark.parametrize("size", [2, 7, 20])
def test_equal_loads_take_as_few_matchings_as_ports(size: int) -> None:
    assert check({(source, target): 12 for source in range(size) for target in range(size)}) == size


def test_a_few_hundred_unequal_loads() -> None:
    random = Random(0)
    check({(source, target): random.randint(1, 1000) for source in range(20) for target in range(20)})


def test_ports_of_both_sides_have_their_own_numbers() -> None:
    # A ring: every host sends to the next while it receives.
    assert check({(host, (host + 1) % 4): 3 for host in range(4)}) == 1


def test_no_loads() -> None:
    assert matchings({}) == []
    assert port_load({}) == 0
