"""Layout conversions: the collectives of every transition in closed form, and what no conversion can go below."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest

from rhino.machine.collectives import ring_bytes
from rhino.sharding.layout import Form, Layout, RouteStep, convert, ranked, route, shards
from rhino.sharding.problem import PARTIAL, REPLICATED

R, P = REPLICATED, PARTIAL
V = 4800.0


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        # Nothing to do, and slices, are free.
        ((R,), (R,), []),
        ((1,), (1,), []),
        ((R,), (0,), []),
        # One collective each, on the whole value.
        ((0,), (R,), [("all-gather", (0,), V)]),
        ((0,), (1,), [("all-to-all", (0,), V)]),
        ((P,), (R,), [("all-reduce", (0,), V)]),
        ((P,), (1,), [("reduce-scatter", (0,), V)]),
    ],
)
def test_one_axis(source: Layout, target: Layout, expected: list[tuple[str, tuple[int, ...], float]]) -> None:
    assert convert(source, target, (4,), V, True) == [RouteStep(*step) for step in expected]


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        # Of two dimensions each is gathered on its own, that over few devices first; of one, both axes at once.
        ((0, 1), (R, R), [("all-gather", (0,), V / 4), ("all-gather", (1,), V)]),
        ((0, 0), (R, R), [("all-gather", (0, 1), V)]),
        # Equal reductions over two axes are one.
        ((P, P), (R, R), [("all-reduce", (0, 1), V)]),
        ((P, P), (0, 0), [("reduce-scatter", (0, 1), V)]),
        # But a reduce-scatter divides one dimension: there are two, or what is left is reduced whole.
        ((P, P), (0, 1), [("reduce-scatter", (0,), V), ("reduce-scatter", (1,), V / 2)]),
        ((P, P), (0, R), [("reduce-scatter", (0,), V), ("all-reduce", (1,), V / 2)]),
        # What the other axis holds does not travel.
        ((0, 1), (R, 1), [("all-gather", (0,), V / 4)]),
        ((0, 1), (0, R), [("all-gather", (1,), V / 2)]),
        ((P, 1), (R, 1), [("all-reduce", (0,), V / 4)]),
        ((P, 1), (0, 1), [("reduce-scatter", (0,), V / 4)]),
        ((0, 1), (2, 1), [("all-to-all", (0,), V / 4)]),
        # What a dot leaves whole is sliced first, and makes what follows smaller.
        ((P, R), (R, 0), [("all-reduce", (0,), V / 4)]),
        # Two axes are never on a dimension that neither end splits by both: it may not divide.
        ((0, R), (R, 0), [("all-gather", (0,), V)]),
        # A reduction comes before a gather, which then moves the sum's part only.
        ((P, 1), (0, R), [("reduce-scatter", (0,), V / 4), ("all-gather", (1,), V / 2)]),
        ((P, 1), (R, R), [("all-reduce", (0,), V / 4), ("all-gather", (1,), V)]),
        # Of two axes on a dimension the minor one can move on its own.
        ((0, 0), (1, 0), [("all-to-all", (0,), V / 4)]),
        ((0, 0), (1, 1), [("all-to-all", (1,), V / 2), ("all-to-all", (0,), V / 4)]),
        ((0, R), (1, 1), [("all-to-all", (0,), V / 4)]),
        ((0, 1), (1, 0), [("all-gather", (0,), V / 4), ("all-to-all", (1,), V)]),
    ],
)
def test_two_axes(source: Layout, target: Layout, expected: list[tuple[str, tuple[int, ...], float]]) -> None:
    assert convert(source, target, (2, 4), V, True) == [RouteStep(*step) for step in expected]


@pytest.mark.parametrize(
    ("source", "target", "form"),
    [
        ((P, P), (1, R), "reduction"),
        ((P, P), (1, R), "scatter"),
        ((P, P, R), (R, 1, R), "scatter"),
        # A dot whose result is split already, is sliced first, or is copied over a third axis.
        ((P, P, 0), (R, 0, 0), "dot"),
        ((P, P, R), (R, 0, 0), "dot"),
        ((P, P, R), (R, 0, R), "dot"),
    ],
)
def test_sums_over_two_axes_wanted_along_one_are_reduced_over_both(source: Layout, target: Layout, form: Form) -> None:
    found = route(source, target, (2, 4, 2)[: len(source)], True, form=form)
    assert [(s.kind, s.axes) for s in found.steps] == [("all-reduce", (0, 1))]


@pytest.mark.parametrize("form", ["reduction", "scatter"])
def test_sums_over_all_devices_are_scattered_over_the_inner_axes_alone(form: Form) -> None:
    found = route((P, P), (R, 1), (2, 4), True, form=form)
    assert [(s.kind, s.axes, s.nbytes) for s in found.steps] == [
        ("reduce-scatter", (1,), 1),
        ("all-reduce", (0,), 1 / 4),
    ]
    found = route((P, P, P), (R, 1, 1), (2, 4, 2), True, form=form)
    assert [(s.kind, s.axes) for s in found.steps] == [("reduce-scatter", (1, 2)), ("all-reduce", (0,))]
    # Not where the parts are nested otherwise than the mesh.
    found = route((P, P, P), (R, 1, 1), (2, 4, 2), True, form=form, orders=((0, 2, 1), (0, 2, 1)))
    assert [(s.kind, s.axes) for s in found.steps] == [("all-reduce", (0, 1, 2))]


@pytest.mark.parametrize(
    ("source", "target", "chain"),
    [
        # Two dimensions follow each other, the second with its axes as they are in the mesh.
        ((P, P, P), (0, 1, 1), [(0,), (1, 2)]),
        # Three do not, nor two where an axis is left over or the dot is told first.
        ((P, P, P), (0, 1, 2), []),
        ((P, P, P), (0, 1, R), []),
        ((P, P, R), (0, 1, R), []),
        # Onto a dimension that is split already comes second.
        ((P, P, 0), (1, 0, 0), [(0,), (1,)]),
        ((P, P, 0), (0, 1, 0), [(1,), (0,)]),
    ],
)
def test_two_dimensions_are_scattered_onto_at_most(
    source: Layout, target: Layout, chain: list[tuple[int, ...]]
) -> None:
    orders = ((2, 1, 0), (2, 1, 0)) if not chain else ((2, 1, 0), (0, 1, 2))
    found = route(source, target, (2, 4, 2), True, orders=orders)
    assert [s.axes for s in found.steps if s.kind == "reduce-scatter"] == chain


def test_a_batched_dot_is_told_first_where_its_sums_are_scattered_onto_a_split_dimension() -> None:
    found = route((0, P), (0, 0), (2, 4), True, form="batched")
    assert [(s.kind, s.axes) for s in found.steps] == [("reduce-scatter", (1,))]
    assert (found.left, found.stops) == (((0, (0,)),), (((0, (0, 1)),),))
    assert route((0, P), (0, 1), (2, 4), True, form="batched").left == ((0, (0,)), (1, (1,)))


def test_a_dot_not_split_otherwise_is_scattered_along_one_and_reduced_along_the_other() -> None:
    found = route((P, P, 0), (R, 1, 0), (2, 4, 2), True)
    assert [(s.kind, s.axes) for s in found.steps] == [("reduce-scatter", (1,)), ("all-reduce", (0,))]


def test_without_reduce_scatter_sums_are_reduced_whole_then_sliced() -> None:
    assert convert((P,), (0,), (4,), V, False) == [RouteStep("all-reduce", (0,), V)]
    assert convert((P, P), (0, R), (2, 4), V, False) == [RouteStep("all-reduce", (0, 1), V)]
    assert convert((P, 1), (0, 1), (2, 4), V, False) == [RouteStep("all-reduce", (0,), V / 4)]


def test_shards() -> None:
    assert shards((0, 1), (2, 4)) == shards((0, 0), (2, 4)) == 8
    assert shards((R, P), (2, 4)) == 1
    assert shards((R, 0), (2, 4)) == 4


SIZES = (2, 4)
WHOLE = list(product((R, 0, 1), repeat=2))
ANY = list(product((R, P, 0, 1), repeat=2))


def held(layout: Layout, other: Layout, device: tuple[int, ...]) -> np.ndarray:
    """Which elements of an 8 x 8 value a device holds.

    Of axes that share a dimension, those that stay there in the other layout are the major ones.
    """
    mask = np.ones((8, 8), bool)
    for d in range(2):
        axes = sorted((a for a in range(2) if layout[a] == d), key=lambda a: other[a] != d)
        parts, at = 1, 0
        for a in axes:
            parts, at = parts * SIZES[a], at * SIZES[a] + device[a]
        index = np.arange(8) * parts // 8 == at
        mask &= index[:, None] if d == 0 else index[None, :]
    return mask


def sent(steps: list[RouteStep]) -> float:
    return sum(ring_bytes(s.kind, prod(SIZES[a] for a in s.axes), s.nbytes) for s in steps)


@pytest.mark.parametrize("source", WHOLE)
@pytest.mark.parametrize("target", WHOLE)
def test_nothing_arrives_without_being_sent(source: Layout, target: Layout) -> None:
    # Every device must receive what it needs and does not have; rings send as much as they receive.
    missing = [
        (held(target, source, device) & ~held(source, target, device)).sum()
        for device in product(*(range(size) for size in SIZES))
    ]
    steps = convert(source, target, SIZES, 64.0, True)
    assert sent(steps) >= np.mean(missing) - 1e-9
    assert bool(steps) == bool(np.any(missing))


@pytest.mark.parametrize("source", ANY)
@pytest.mark.parametrize("target", WHOLE)
def test_a_target_without_reduce_scatter_never_sends_less(source: Layout, target: Layout) -> None:
    with_it, without = (convert(source, target, SIZES, 64.0, scatter) for scatter in (True, False))
    if not any(s >= 0 and t >= 0 and s != t for s, t in zip(source, target, strict=True)):
        assert sent(without) >= sent(with_it)
    assert not any(step.kind == "reduce-scatter" for step in without)
    # Partial axes, and only they, are reduced, each once.
    for steps in (with_it, without):
        reduced = sorted(a for s in steps if s.kind in ("all-reduce", "reduce-scatter") for a in s.axes)
        assert reduced == [a for a in range(2) if source[a] == P]


def test_which_dimensions_are_split_changes_no_step() -> None:
    """Only which are the same, and their order."""
    layouts = list(product((P, R, 1, 4), repeat=2))
    for source, target in product(layouts, [layout for layout in layouts if P not in layout]):
        for odd in ((), ((4, 7),)) if 4 in (*source, *target) else ((),):
            start, end, renumbered = ranked(source, target, odd)
            assert {*start, *end} <= {P, R, 0, 1}
            found = [
                route(a, b, (2, 4), True, odd=o).steps for a, b, o in ((source, target, odd), (start, end, renumbered))
            ]
            assert found[0] == found[1]
