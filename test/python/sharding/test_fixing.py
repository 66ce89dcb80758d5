"""Programs without the columns that are zero, against all answers of small ones."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rhino.sharding.fixing import Matrix, without


def answers(rows: Matrix, count: int) -> set[tuple[int, ...]]:
    """All answers of zeros and ones."""
    whole = np.zeros((len(rows.lows), count))
    for r, (start, end) in enumerate(zip(rows.starts, rows.starts[1:], strict=False)):
        whole[r, rows.columns[start:end]] = rows.coefficients[start:end]
    return {
        x for x in product((0, 1), repeat=count) if np.all(whole @ x >= rows.lows) and np.all(whole @ x <= rows.highs)
    }


def random_rows(seed: int, count: int) -> tuple[Matrix, Any]:
    """Sums that are one, sums that are zero or more or less, and which columns are zero."""
    random = np.random.default_rng(seed)
    starts, columns, coefficients, lows, highs = [0], [], [], [], []
    for _ in range(int(random.integers(1, 7))):
        picked = random.choice(count, int(random.integers(1, count)), replace=False)
        columns += [int(c) for c in picked]
        coefficients += [float(c) for c in random.choice([-1.0, 1.0, 2.0], len(picked))]
        starts.append(len(columns))
        low, high = [(1.0, 1.0), (0.0, 0.0), (0.0, np.inf), (-np.inf, 0.0), (-np.inf, 2.0)][int(random.integers(5))]
        lows.append(low)
        highs.append(high)
    return Matrix.of(starts, columns, coefficients, lows, highs), random.random(count) < 0.4


@given(st.integers(0, 10**6))
@settings(max_examples=200, deadline=None)
def test_no_answer_is_lost_and_none_is_new(seed: int) -> None:
    count = 7
    rows, zero = random_rows(seed, count)
    left, kept = without(rows, zero)
    assert not zero[kept].any()
    lifted = set()
    for y in answers(left, len(kept)):
        x = np.zeros(count, dtype=int)
        x[kept] = y
        lifted.add(tuple(x.tolist()))
    assert lifted == {x for x in answers(rows, count) if not any(v and z for v, z in zip(x, zero, strict=True))}


def test_pairs_of_a_state_that_is_not_taken_are_zero_too() -> None:
    # Two classes of two states, x0 + x1 = 1 and x2 + x3 = 1, and what pairs them: x4 of (0, 2), x5 of (1, 2).
    rows = Matrix.of(
        [0, 2, 4, 6, 8, 11],
        [0, 1, 2, 3, 4, 0, 5, 1, 4, 5, 2],
        [1, 1, 1, 1, 1, -1, 1, -1, 1, 1, -1],
        [1, 1, -np.inf, -np.inf, 0],
        [1, 1, 0, 0, 0],
    )
    left, kept = without(rows, np.array([False, True, False, False, False, False]))
    assert kept.tolist() == [0, 2, 3, 4]
    # What bounds x5 says nothing any more.
    assert len(left.lows) == 4
