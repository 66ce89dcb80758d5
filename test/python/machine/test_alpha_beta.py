"""The tests' own model of communication, one latency and one bandwidth per axis, against numbers worked by hand."""

from __future__ import annotations

from math import prod

import pytest
from alpha_beta import AlphaBeta
from hypothesis import given
from hypothesis import strategies as st
from lines import assert_each_line_is_best_somewhere

from rhino.errors import RhinoError
from rhino.machine.collectives import ring_bytes
from rhino.program.operations import COLLECTIVES


def ar(n: int, nbytes: float, alpha: float = 1, beta: float = 1) -> float:
    return alpha + 2 * beta * (n - 1) / n * nbytes


@pytest.mark.parametrize(("mesh", "axis"), [((4, 1), 0), ((1, 4), 1)])
def test_alpha_beta_numbers_of_the_acceptance_table(mesh: tuple[int, int], axis: int) -> None:
    model = AlphaBeta(mesh, (1, 1), (1, 1))
    square, batch = 128 * 128 * 4, 128 * 1024 * 4
    assert 2 * model.time("all-reduce", (axis,), square) == 196610
    assert model.time("all-reduce", (axis,), batch) == 786433
    assert 12 * model.time("all-reduce", (axis,), square) == 1179660
    assert 11 * model.time("all-reduce", (axis,), batch) == 8650763


@pytest.mark.parametrize(("mesh", "expected"), [((4, 8), 26872), ((8, 4), 58330), ((3, 4), 46314)])
def test_alpha_beta_numbers_on_two_axes(mesh: tuple[int, int], expected: int) -> None:
    model = AlphaBeta(mesh, (1, 1), (1, 0.01))
    weights, activations = 128 * 128 * 4 / mesh[1], 1024 * 128 * 4 / mesh[0]
    total = 2 * model.time("all-reduce", (0,), weights) + model.time("all-reduce", (1,), activations)
    assert total == pytest.approx(expected, rel=1e-4)


def test_alpha_beta_conventions() -> None:
    model = AlphaBeta((4, 1), (3, 5), (2, 7))
    assert model.time("all-gather", (0,), 100) == 3 + 2 * 3 / 4 * 100
    assert model.time("reduce-scatter", (0,), 100) == 3 + 2 * 3 / 4 * 100
    assert model.time("all-to-all", (0,), 160) == 3 + 2 * 3 / 16 * 160
    assert model.time("collective-permute", (0,), 100) == 3 + 2 * 100
    assert model.time("all-reduce", (1,), 100) == 0
    assert model.affine("all-reduce", (0,)) == (3, 3.0)
    assert AlphaBeta((4,), (1,), (1,), reduce_scatter=False).time("reduce-scatter", (0,), 100) == ar(4, 100)
    with pytest.raises(RhinoError, match="2 mesh sizes, 1 alphas and 2 betas; give one of each per axis"):
        AlphaBeta((2, 2), (1,), (1, 1))


def test_alpha_beta_over_two_axes_takes_the_best_order() -> None:
    model = AlphaBeta((2, 4), (0, 0), (1, 0.01))
    # Scatter on the cheap axis, all-reduce a quarter on the dear one, gather on the cheap one.
    assert model.time("all-reduce", (0, 1), 800) == pytest.approx(2 * 0.01 * 0.75 * 800 + 2 * 0.5 * 200)
    assert model.time("all-gather", (0, 1), 800) == pytest.approx(0.01 * 0.75 * 800 + 0.5 * 200)
    # Each device holds 100 bytes: 3/4 of them go along the cheap axis, 1/2 along the dear one.
    assert model.time("all-to-all", (0, 1), 800) == pytest.approx(0.01 * 75 + 50)


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.lists(st.floats(0, 10), min_size=3, max_size=3),
    st.lists(st.floats(0.01, 10), min_size=3, max_size=3),
    st.floats(0, 1e6),
)
def test_alpha_beta_over_several_axes_is_never_worse_than_one_ring(
    mesh: list[int], alpha: list[float], beta: list[float], nbytes: float
) -> None:
    model = AlphaBeta(mesh, alpha[: len(mesh)], beta[: len(mesh)])
    axes = tuple(range(len(mesh)))
    n = prod(mesh)
    live = [axis for axis in axes if mesh[axis] > 1]
    for kind in COLLECTIVES:
        worst = max((alpha[a] for a in live), default=0) + max((beta[a] for a in live), default=0) * ring_bytes(
            kind, n, nbytes
        )
        assert 0 <= model.time(kind, axes, nbytes) <= worst * (1 + 1e-9) + 1e-12
        assert_each_line_is_best_somewhere(model.lines(kind, axes))


def test_a_line_that_is_never_the_lowest_is_dropped() -> None:
    # Three candidates start at 5, 7 and 11; the one at 7 is flatter than the first, yet 5 or 11 is always lower.
    model = AlphaBeta((2, 3, 2), (0, 1, 5), (2, 2, 1))
    lines = model.lines("all-reduce", (0, 1, 2))
    assert [line[0] for line in lines] == [5, 11]
    assert [line[1] for line in lines] == pytest.approx([2 * 2 * 11 / 12, 8 / 3])
