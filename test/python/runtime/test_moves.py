"""Arrays sent between groups of devices that hold other pieces of them: right, and without waiting for them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rhino.dialect import sdy
from rhino.runtime.edges import tiles_of
from rhino.runtime.moves import as_typed, mover


def split(first: int, count: int, *axes: str | None) -> NamedSharding:
    return NamedSharding(Mesh(np.array(jax.devices()[first : first + count]), ("x",)), PartitionSpec(*axes))


@pytest.mark.parametrize(
    ("source", "target", "same"),
    [
        (split(0, 3, "x"), split(3, 3, "x"), True),
        (split(0, 3, "x"), split(3, 2, "x"), False),
        (split(0, 2, "x"), split(2, 2, None, "x"), False),
        (split(0, 3), split(3, 2, "x"), False),
        (split(0, 3, "x"), split(3, 2), False),
        (split(0, 2, None, "x"), split(2, 1), False),
        (split(0, 1), split(1, 2, "x"), False),
    ],
)
def test_moves(source: Any, target: Any, same: bool) -> None:
    array = np.arange(72, dtype=np.float32).reshape(6, 12)
    asked = []

    def put(array: Any, sharding: Any) -> Any:
        asked.append(sharding)
        return jax.device_put(array, sharding)

    moved = mover(source, target, jax.ShapeDtypeStruct(array.shape, array.dtype), put)(jax.device_put(array, source))
    # What is there in the very pieces jax sends; it would wait for, and send all of, anything else.
    assert asked == [target] * same
    assert moved.sharding.is_equivalent_to(target, 2)
    np.testing.assert_array_equal(np.asarray(moved), array)


@pytest.mark.parametrize(
    ("axes", "dims"),
    [
        ([("x", 2), ("y", 4)], [["x"], ["y"]]),
        ([("x", 2), ("y", 4)], [["y"], ["x"]]),
        ([("x", 2), ("y", 4)], [["y", "x"], []]),
        ([("x", 2), ("y", 4)], [["y:(1)2"], ["x"]]),
        ([("x", 2), ("y", 4)], [["y:(2)2"], ["y:(1)2"]]),
        ([("x", 8)], [["x:(2)2"], ["x:(4)2", "x:(1)2"]]),
        ([("x", 1), ("y", 8)], [["x"], ["y:(2)4"]]),
        ([("x", 8)], [[], []]),
    ],
)
def test_a_sharding_is_what_the_type_says(axes: list[tuple[str, int]], dims: list[list[str]]) -> None:
    shape, devices = (16, 24), jax.devices()[:8]
    wanted = dict(zip([device.id for device in devices], sdy.slices(shape, dims, axes), strict=True))
    found = tiles_of(as_typed(dims, axes, devices), shape)
    assert {tile.device: tile.slice for tile in found} == wanted
    value = np.arange(384, dtype=np.float32).reshape(shape)
    np.testing.assert_array_equal(jax.device_put(value, as_typed(dims, axes, devices)), value)


def test_a_type_of_one_device_is_whole_there() -> None:
    (device,) = as_typed([[]], [], jax.devices()[:1]).device_set
    assert device == jax.devices()[0]
