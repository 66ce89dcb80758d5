"""Grids of blocked kernels: what can be cut, against closed forms and against running the parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhino.errors import RhinoError
from rhino.kernels.grids import Axis, Blocks, cut_axes, cut_rule, local_grid
from rhino.kernels.rules import parse_rule

Map = Callable[..., Sequence[object]]


def blocks(shape: tuple[int, ...], sizes: tuple[int, ...], index: Map) -> Blocks:
    return Blocks(shape, sizes, lambda points: [np.asarray(n) for n in index(*points)])


def test_a_batch_axis_is_cut_in_every_array_and_an_inner_one_where_it_has_blocks() -> None:
    # out[i, j] = x[i, j] + w[j], a grid of 8 x 4.
    x = blocks((8, 64), (1, 16), lambda i, j: (i, j))
    w = blocks((64,), (16,), lambda i, j: (j,))
    axes = cut_axes((8, 4), [x, w, x], 1, ())
    assert axes == [Axis(0, 8, (0, -1, 0)), Axis(1, 4, (1, 0, 1))]
    rule, names, why = cut_rule(axes, [x, w, x], 1)
    assert not why
    assert names[:2] == ("g0", "g1")
    assert rule.factor_sizes[:2] == (8, 4)
    # The blocks of a dimension are major, what is in a block stays together.
    assert rule.operands[0][0] == (0,) and rule.operands[0][1][0] == 1 and rule.operands[0][1][1] in rule.replicate
    assert rule.operands[1][0][0] == 1


def test_heads_that_share_keys_can_be_cut_as_often_as_there_are_keys() -> None:
    # 8 heads of queries, 2 of keys: head h reads h // 4.
    q = blocks((8, 32), (1, 32), lambda h: (h, 0 * h))
    k = blocks((2, 32), (1, 32), lambda h: (h // 4, 0 * h))
    (axis,) = cut_axes((8,), [q, k, q], 1, ())
    assert (axis.parts, axis.dims) == (2, (0, 0, 0))


def test_programs_that_write_to_the_same_blocks_are_cut_only_if_they_are_said_to_sum() -> None:
    # A product: out[i] += x[i, l] @ y[l], and the kernel asks for the first l.
    x = blocks((64, 32), (16, 8), lambda i, k: (i, k))
    y = blocks((32, 16), (8, 16), lambda i, k: (k, 0 * k))
    out = blocks((64, 16), (16, 16), lambda i, k: (i, 0 * i))
    axes = cut_axes((4, 4), [x, y, out], 1, read={1})
    rule, _, why = cut_rule(axes, [x, y, out], 1)
    assert why == {"g1": "programs along axis 1 of its grid write to the same blocks"}
    assert rule.reduction == ()
    rule, names, why = cut_rule(axes, [x, y, out], 1, parse_rule("m k, k n -> m n"), reduction=("k",))
    assert not why
    assert [names[f] for f in rule.reduction] == ["k"]


def test_an_axis_whose_place_is_read_is_not_cut() -> None:
    x = blocks((64,), (16,), lambda i: (i,))
    axes = cut_axes((4,), [x, x], 1, read={0})
    rule, _, why = cut_rule(axes, [x, x], 1)
    assert why == {"g0": "the kernel reads its place along axis 0 of its grid"}
    assert set(rule.replicate) == set(range(len(rule.factor_sizes)))


@pytest.mark.parametrize(
    ("index", "sizes"),
    [
        (lambda i: (3 - i,), (16,)),  # backwards
        (lambda i: (i % 2,), (16,)),  # twice over
        (lambda i: (i * i % 4,), (16,)),
        (lambda i: (i,), (0,)),  # blocks without a regular size
    ],
)
def test_blocks_in_another_order_are_not_cut(index: Map, sizes: tuple[int, ...]) -> None:
    out = blocks((64,), (16,), lambda i: (i,))
    (axis,) = cut_axes((4,), [blocks((64,), sizes, index), out], 1, ())
    assert axis.parts < 4 or axis.why or axis.dims[0] < 0


def test_one_program_that_reads_elsewhere_is_seen() -> None:
    # Of 64 x 64 programs one reads another block.
    odd = blocks((64, 64), (1, 1), lambda i, j: (i, np.where((i == 37) & (j == 21), 5, j)))
    out = blocks((64, 64), (1, 1), lambda i, j: (i, j))
    rows, columns = cut_axes((64, 64), [odd, out], 1, ())
    assert rows.why and columns.why


def test_only_axes_that_an_array_follows_are_looked_at() -> None:
    """A product of 2**30 programs, where every array follows two of three axes: too many if nobody says which."""
    grid = (1024, 1024, 1024)
    maps = {(0, 2): lambda i, j, k: (i, k), (1, 2): lambda i, j, k: (k, j), (0, 1): lambda i, j, k: (i, j)}
    arrays = [blocks((1024, 1024), (1, 1), index) for index in maps.values()]
    assert all("too many to look at" in axis.why for axis in cut_axes(grid, arrays, 1, ()))
    arrays = [replace(array, axes=frozenset(axes)) for array, axes in zip(arrays, maps, strict=True)]
    assert [axis.dims for axis in cut_axes(grid, arrays, 1, ())] == [(0, -1, 0), (-1, 1, 1), (1, 0, -1)]


def test_a_dimension_that_blocks_do_not_divide_stays_whole() -> None:
    x = blocks((60,), (16,), lambda i: (i,))
    (axis,) = cut_axes((4,), [x, x], 1, ())
    assert axis.why


def test_a_users_rule_can_only_forbid() -> None:
    x = blocks((8, 64), (1, 16), lambda i, j: (i, j))
    axes = cut_axes((8, 4), [x, x], 1, ())
    rule, names, why = cut_rule(axes, [x, x], 1, parse_rule("b s -> b s"), whole=("s",))
    assert why == {"s": "its registration says so"}
    assert names[0] == "b" and rule.factor_sizes[0] == 8
    # What is cut together has to have one name.
    _, _, why = cut_rule(axes, [x, x], 1, parse_rule("b s -> b t"))
    assert "factors s, t" in why["g1"]
    # jax.vmap puts dimensions in front.
    wide = blocks((3, 8, 64), (1, 1, 16), lambda v, i, j: (v, i, j))
    _, names, why = cut_rule(cut_axes((3, 8, 4), [wide, wide], 1, ()), [wide, wide], 1, parse_rule("b s -> b s"))
    assert names[:3] == ("v0", "b", "s") and not why


def test_a_rule_for_other_arrays_is_an_error() -> None:
    x = blocks((8, 64), (1, 16), lambda i, j: (i, j))
    axes = cut_axes((8, 4), [x, x], 1, ())
    with pytest.raises(RhinoError, match="has 2 operands, and the kernel has 1"):
        cut_rule(axes, [x, x], 1, parse_rule("b s, s -> b s"))
    with pytest.raises(RhinoError, match=r"gives operand 0 (at least )?3 dimensions"):
        cut_rule(axes, [x, x], 1, parse_rule("a b s -> b s"))


def run(
    grid: Sequence[int], arrays: Sequence[Blocks], inputs: Sequence[np.ndarray], shape: tuple[int, ...]
) -> np.ndarray:
    """A kernel that adds up what it reads, and counts itself: every program writes its block once."""
    out = np.zeros(shape)
    *reads, write = arrays
    for point in product(*map(range, grid)):
        at = [np.asarray([p]) for p in point]

        def part(b: Blocks, at: list[np.ndarray] = at) -> tuple[slice, ...]:
            numbers = [int(np.broadcast_to(n, (1,))[0]) for n in b.index(at)]
            return tuple(slice(n * s, (n + 1) * s) for n, s in zip(numbers, b.sizes, strict=True))

        out[part(write)] = 1 + sum(x[part(b)].sum() for b, x in zip(reads, inputs, strict=True))
    return out


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_parts_put_together_are_the_whole(data: st.DataObject) -> None:
    """For drawn grids and block maps: whatever the analysis allows, devices on their parts make what one makes."""
    grid = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=3)))
    size = data.draw(st.sampled_from([1, 2]))
    # The output has a block for each program; inputs follow some axes, whole or in groups, in any order.
    out = blocks(tuple(n * size for n in grid), (size,) * len(grid), lambda *p: p)
    reads = []
    for _ in range(data.draw(st.integers(1, 2))):
        dims = data.draw(st.lists(st.integers(0, len(grid) - 1), min_size=1, max_size=3))
        groups = [data.draw(st.sampled_from([g for g in range(1, grid[a] + 1) if grid[a] % g == 0])) for a in dims]
        reverse = data.draw(st.booleans())

        def index(*p: np.ndarray, dims=dims, groups=groups, reverse=reverse) -> list[np.ndarray]:  # type: ignore[no-untyped-def]
            found = [p[a] // g for a, g in zip(dims, groups, strict=True)]
            return [(grid[dims[0]] // groups[0] - 1 - found[0]) if reverse else found[0], *found[1:]]

        shape = tuple(grid[a] // g * size for a, g in zip(dims, groups, strict=True))
        reads.append(blocks(shape, (size,) * len(dims), index))
    arrays = [*reads, out]
    rng = np.random.default_rng(0)
    inputs = [rng.integers(0, 9, b.shape).astype(float) for b in reads]
    whole = run(grid, arrays, inputs, out.shape)
    for axis in cut_axes(grid, arrays, 1, ()):
        if axis.why or axis.shared:
            continue
        for parts in (n for n in range(2, axis.parts + 1) if axis.parts % n == 0):
            pieces = []
            for device in range(parts):
                mine = []
                for t, x in enumerate(inputs):
                    d = axis.dims[t]
                    mine.append(x if d < 0 else np.split(x, parts, d)[device])
                local = [
                    Blocks(
                        tuple(n // parts if axis.dims[t] == d else n for d, n in enumerate(b.shape)), b.sizes, b.index
                    )
                    for t, b in enumerate(arrays)
                ]
                # A map that counts from the end counts from the part's end.
                pieces.append(run(local_grid(grid, {axis.axis: parts}), local, mine, local[-1].shape))
            made = np.concatenate(pieces, axis.dims[-1])
            assert np.array_equal(made, whole), (grid, axis, parts)
    assert prod(whole.shape) == prod(grid) * size ** len(grid)
