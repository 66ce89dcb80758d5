"""Sequences taken step by step: always the one whose next thing has the lowest bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import given
from hypothesis import strategies as st

from rhino.sharding.best_first import best_first


def told(name: int, things: Sequence[int], log: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for thing in things:
        yield name, thing
        log.append((name, thing))


@given(st.lists(st.lists(st.integers(0, 9), max_size=5), max_size=5))
def test_each_step_is_that_with_the_lowest_bound(sequences: list[list[int]]) -> None:
    log: list[tuple[int, int]] = []
    left = [list(things) for things in sequences]
    ends = 0
    for ended in best_first([told(k, things, log) for k, things in enumerate(sequences)], lambda one: one[1]):
        name, thing = log[-1]
        assert (thing, name) == min((things[0], k) for k, things in enumerate(left) if things)
        left[name].pop(0)
        assert ended == (not left[name])
        ends += ended
    assert not any(left)
    assert ends == sum(map(bool, sequences))


def test_a_bound_that_rose_is_asked_again() -> None:
    log: list[tuple[int, int]] = []
    # When the first thing of 0 was tried, that of 1 is known to be worse than the second of 0.
    for _ in best_first([told(0, [1, 5], log), told(1, [2], log)], lambda one: 9 if one[0] and log else one[1]):
        pass
    assert log == [(0, 1), (0, 5), (1, 2)]


def test_nothing_is_done_that_is_not_asked_for() -> None:
    log: list[tuple[int, int]] = []
    next(best_first([told(0, [1, 2], log), told(1, [3], log)], lambda one: one[1]))
    assert log == [(0, 1)]
