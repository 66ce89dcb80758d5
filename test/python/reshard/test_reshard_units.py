"""Units partition what is received, agree with a table of every element, and could not be larger."""

from __future__ import annotations

from itertools import combinations, product
from math import prod
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reshard_problems import drawn, problem

from rhino.errors import RhinoError
from rhino.reshard.data import MovedTensor, Tile, Unit
from rhino.reshard.units import units_of


def cells(box: tuple[tuple[int, int], ...]) -> set[tuple[int, ...]]:
    return set(product(*(range(start, stop) for start, stop in box)))


def random_tensor(seed: int) -> MovedTensor:
    """Boxes anywhere, on devices that may be source and target; one source tile is the whole tensor."""
    random = Random(seed)
    shape = tuple(random.randint(1, 5) for _ in range(random.randint(0, 3)))

    def tile() -> Tile:
        ends = (sorted(random.choices(range(size + 1), k=2)) for size in shape)
        return Tile(random.randrange(6), tuple((low, high) for low, high in ends))

    whole = Tile(random.randrange(6), tuple((0, size) for size in shape))
    source = (whole, *(tile() for _ in range(random.randint(0, 4))))
    return MovedTensor(shape, random.choice((1, 4)), source, tuple(tile() for _ in range(random.randint(0, 5))))


def check_units(tensor: MovedTensor, units: tuple[Unit, ...]) -> None:
    """Compares with holders and receivers of every single element."""
    expected = {}
    for cell in cells(tuple((0, size) for size in tensor.shape)):
        holders = tuple(sorted({tile.device for tile in tensor.source if cell in cells(tile.slice)}))
        wanted = {tile.device for tile in tensor.target if cell in cells(tile.slice)}
        if wanted - set(holders):
            expected[cell] = (holders, tuple(sorted(wanted - set(holders))))
    found = {}
    for index, unit in enumerate(units):
        assert unit.index == index
        assert unit.nbytes == len(cells(unit.slice)) * tensor.item_bytes > 0
        for cell in cells(unit.slice):
            assert cell not in found
            found[cell] = (unit.holders, unit.receivers)
    assert found == expected
    for one, other in combinations(units, 2):
        if (one.holders, one.receivers) == (other.holders, other.receivers):
            hull = tuple((min(a[0], b[0]), max(a[1], b[1])) for a, b in zip(one.slice, other.slice, strict=True))
            assert len(cells(hull)) > len(cells(one.slice)) + len(cells(other.slice)), "two units that are one box"


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(0, 10**6))
def test_units_of_any_tiles(seed: int) -> None:
    tensor = random_tensor(seed)
    check_units(tensor, units_of([tensor]))


def test_units_of_a_receiver_partition_its_tile() -> None:
    for seed in range(40):
        tensor, _ = drawn(seed)
        units = units_of([tensor])
        for tile in tensor.target:
            own = [unit for unit in units if tile.device in unit.receivers]
            nbytes = prod(stop - start for start, stop in tile.slice) * tensor.item_bytes
            assert sum(unit.nbytes for unit in own) == nbytes
            for unit in own:
                assert all(
                    low <= start and stop <= high
                    for (start, stop), (low, high) in zip(unit.slice, tile.slice, strict=True)
                )


def test_units_of_several_tensors_are_numbered_together() -> None:
    first, _ = problem((8, 8), ((2, 2), "S0,R"), ((2, 2), "R,S1"))
    units = units_of([first, first])
    assert [unit.index for unit in units] == list(range(len(units)))
    assert [unit.tensor for unit in units] == [0] * (len(units) // 2) + [1] * (len(units) // 2)


def test_what_receivers_hold_already_is_no_unit() -> None:
    tensor, _ = problem((8, 8), ((2, 2), "S0,R"), ((2, 2), "S01,R"), first=0)
    assert units_of([tensor]) == ()


def test_empty_tensors_have_no_units() -> None:
    tensor, _ = problem((0, 8), ((2, 2), "S0,R"), ((2, 2), "R,R"))
    assert units_of([tensor]) == ()


def test_elements_that_nobody_holds_are_refused() -> None:
    tensor = MovedTensor((4,), 4, (Tile(0, ((0, 3),)),), (Tile(1, ((2, 4),)),))
    with pytest.raises(RhinoError, match=r"tensor 0: nobody holds element \[3\], which devices want"):
        units_of([tensor])
    wanted_elsewhere = MovedTensor((4,), 4, (Tile(0, ((0, 3),)),), (Tile(1, ((2, 3),)),))
    assert [unit.slice for unit in units_of([wanted_elsewhere])] == [((2, 3),)]


@pytest.mark.parametrize("box", [((0, 5),), ((3, 2),), ((-1, 2),), ((0, 2), (0, 1))])
def test_tiles_outside_of_the_tensor_are_refused(box: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(RhinoError, match=r"device 1: tile .* is not inside of shape"):
        units_of([MovedTensor((4,), 4, (Tile(0, ((0, 4),)),), (Tile(1, box),))])
