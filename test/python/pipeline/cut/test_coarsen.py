"""Units of ops that are pinned: none has ops that pins leave to different stages."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhino.pipeline.cut.coarsen import coarsen
from rhino.pipeline.cut.problem import pinned_ranges


@given(st.integers(0, 10**6), st.integers(1, 8), st.sampled_from([4, 100]))
@settings(max_examples=60, deadline=None)
def test_units_keep_what_pins_leave_to_ops(seed: int, target: int, limit: int) -> None:
    r = random.Random(seed)
    edges = [(u, v) for v in range(1, 24) for u in sorted(r.sample(range(v), min(v, r.randint(0, 2))))]
    free = pinned_ranges((-1,) * 24, sorted(edges), 3)
    assert set(free) == {(0, 2)}
    order = sorted(r.choices(range(3), k=24))  # never later than what follows
    ranges = pinned_ranges([s if r.random() < 0.3 else -1 for s in order], sorted(edges), 3)
    after = {u: [v for a, v in edges if a == u] for u in range(24)}
    seconds = {u: r.choice([0.001, 1.0, 3.0]) for u in range(24)}
    groups = coarsen(range(24), after, seconds, target, limit, dict(enumerate(ranges)))
    unit_of = {u: n for n, group in enumerate(groups) for u in group}
    assert sorted(unit_of) == list(range(24))
    assert all(unit_of[u] <= unit_of[v] for u, v in edges)
    for group in groups:
        assert len({ranges[u] for u in group}) == 1
    # The first stage of each keeps all pins, and no edge goes back.
    assert all(ranges[groups[n][0]] <= ranges[groups[n + 1][0]] for n in range(len(groups) - 1))
    assert len(groups) <= limit + len(set(ranges))


def test_ranges_are_those_of_what_is_pinned_before_and_after() -> None:
    assert pinned_ranges((-1, 1, -1, 2, -1), [(0, 1), (1, 2), (2, 3), (3, 4)], 4) == (
        (0, 1), (1, 1), (1, 2), (2, 2), (2, 3),
    )  # fmt: skip


@pytest.mark.parametrize("limit", [1, 3])
def test_without_pins_there_are_no_more_units_than_the_limit(limit: int) -> None:
    after = {u: [u + 1] if u < 9 else [] for u in range(10)}
    assert len(coarsen(range(10), after, dict.fromkeys(range(10), 1.0), 10, limit)) <= limit
