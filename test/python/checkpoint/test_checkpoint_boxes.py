"""Blocks of arrays stored in windows and with dimensions cut into factors: every element once, where it belongs."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhino.checkpoint.boxes import Index, Window, common_grid


def blocks_of(stored: tuple[int, ...], parts: tuple[int, ...]) -> list[Index]:
    """The blocks of an array of which dimension i is split into parts[i]."""
    ranges = [[(i * size // n, (i + 1) * size // n) for i in range(n)] for size, n in zip(stored, parts, strict=True)]
    return [tuple(index) for index in product(*ranges)]


@st.composite
def windows(draw: st.DrawFn) -> tuple[Window, tuple[int, ...]]:
    """A window of some dimensions cut into factors, and into how many parts each stored dimension is split."""
    shape, stored, parts = [], [], []
    for _ in range(draw(st.integers(0, 3))):
        factors = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
        # A dimension of one row has nothing to be cut into, and sizes of 1 beside others leave a choice.
        factors = [factor for factor in factors if factor > 1] or [1]
        shape.append(int(np.prod(factors)))
        stored += factors
        parts += [draw(st.sampled_from([n for n in range(1, f + 1) if f % n == 0])) for f in factors]
    start = [draw(st.integers(0, 5)) for _ in shape]
    return Window(tuple(start), tuple(shape), tuple(stored)), tuple(parts)


@settings(deadline=None, max_examples=200)
@given(windows())
def test_boxes_put_every_element_where_it_belongs(case: tuple[Window, tuple[int, ...]]) -> None:
    window, parts = case
    values = np.arange(np.prod(window.shape, dtype=int)).reshape(window.stored)
    whole = np.full([low + size for low, size in zip(window.start, window.shape, strict=True)], -1)
    grid = common_grid([window], [[n // p for n, p in zip(window.stored, parts, strict=True)]])
    writers: dict[tuple[int, ...], int] = {}
    for number, index in enumerate(blocks_of(window.stored, parts)):
        block = values[tuple(slice(*at) for at in index)].reshape(window.split(index))
        for box, select in window.boxes(index):
            assert (whole[box] == -1).all()
            whole[box] = block[select]
            # No chunk of the file is written by two blocks: processes could not do so at the same time.
            chunks = [range(at.start // n, -(-at.stop // n)) for at, n in zip(box, grid, strict=True)]
            assert all(at.start % n == at.stop % n == 0 for at, n in zip(box, grid, strict=True))
            assert all(writers.setdefault(chunk, number) == number for chunk in product(*chunks))
    inside = tuple(slice(low, None) for low in window.start)
    np.testing.assert_array_equal(whole[inside], values.reshape(window.shape))


def test_chunks_of_stages_of_different_size_are_theirs_alone() -> None:
    rows = [Window((0, 0), (4, 6), (4, 6)), Window((4, 0), (6, 6), (6, 6))]
    assert common_grid(rows, [(4, 3), (6, 6)]) == (2, 3)
    assert common_grid(rows, [(2, 6), (3, 2)]) == (1, 2)


def test_columns_of_a_fused_matrix_are_contiguous_runs() -> None:
    fused = Window((0, 0), (8, 12), (8, 3, 4))
    boxes = [box for box, _ in fused.boxes(((0, 8), (0, 3), (2, 4)))]
    assert boxes == [(slice(0, 8), slice(4 * i + 2, 4 * i + 4)) for i in range(3)]
    with pytest.raises(ValueError, match="is not"):
        list(Window((0,), (8,), (3, 3)).boxes(((0, 3), (0, 3))))
