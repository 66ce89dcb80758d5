"""Tiles of specs: equal to JAX's own shardings, and what is refused."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rhino.errors import RhinoError
from rhino.reshard.data import Tile
from rhino.reshard.tiles import parse_spec, spec_tiles


@pytest.mark.parametrize("spec", ["S0,R", "R,S1", "S01,R", "S10,R", "S1,S0", "R,R", "R,S10"])
def test_tiles_are_where_jax_puts_them(spec: str) -> None:
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("0", "1"))
    parts = parse_spec(spec)
    sharding = NamedSharding(mesh, PartitionSpec(*(None if part == "R" else tuple(part[1:]) for part in parts)))
    where = sharding.devices_indices_map((8, 16))
    for place, tile in enumerate(spec_tiles((8, 16), (2, 4), parts, 100)):
        index = where[mesh.devices.flat[place]]
        assert tile.device == 100 + place
        assert tile.slice == tuple(each.indices(size)[:2] for each, size in zip(index, (8, 16), strict=True))


@pytest.mark.parametrize(
    ("size", "tiles"),
    [
        (5, [(0, 2), (2, 4), (4, 5), (5, 5)]),
        (2, [(0, 1), (1, 2), (2, 2), (2, 2)]),
        (9, [(0, 3), (3, 6), (6, 9), (9, 9)]),
    ],
)
def test_tiles_that_do_not_divide_are_padded_at_the_end(size: int, tiles: list[tuple[int, int]]) -> None:
    assert spec_tiles((size,), (4,), ("S0",)) == tuple(Tile(at, (tile,)) for at, tile in enumerate(tiles))


def test_scalars_have_a_spec_too() -> None:
    assert parse_spec("") == ()
    assert spec_tiles((), (2,), ()) == (Tile(0, ()), Tile(1, ()))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("S0", "spec S0: 1 dimensions, but the tensor has 2"),
        ("S0,S0", "spec S0,S0: mesh axis 0 is used twice"),
        ("S00,R", "spec S00,R: mesh axis 0 is used twice"),
        ("S2,R", "spec S2,R: dimension 0: mesh axis 2, but the mesh has 2 axes"),
        ("R,T0", "spec R,T0: dimension 1: 'T0' is no layout"),
        ("R,S", "spec R,S: dimension 1: 'S' is no layout"),
        ("R,", "spec R,: dimension 1: '' is no layout"),
    ],
)
def test_wrong_specs_are_refused(spec: str, message: str) -> None:
    with pytest.raises(RhinoError) as error:
        spec_tiles((8, 8), (2, 2), parse_spec(spec))
    assert error.value.message == message
    assert error.value.remedy
