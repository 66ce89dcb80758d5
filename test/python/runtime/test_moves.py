"""Arrays sent between groups of devices that hold other pieces of them: right, and without waiting for them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rhino.runtime.moves import mover, whole


def split(first: int, count: int, *axes: str | None) -> NamedSharding:
    return NamedSharding(Mesh(np.array(jax.devices()[first : first + count]), ("x",)), PartitionSpec(*axes))


@pytest.mark.parametrize(
    ("source", "target", "sent"),
    [
        (split(0, 3, "x"), split(3, 3, "x"), split(3, 3, "x")),
        (split(0, 3, "x"), split(3, 2, "x"), whole(jax.devices()[3:5])),
        (split(0, 2, "x"), split(2, 2, None, "x"), whole(jax.devices()[2:4])),
        (split(0, 3), split(3, 2, "x"), whole(jax.devices()[3:5])),
        (split(0, 3, "x"), split(3, 2), split(3, 2)),
        (split(0, 2, None, "x"), split(2, 1), split(2, 1)),
        (split(0, 1), split(1, 2, "x"), whole(jax.devices()[1:3])),
    ],
)
def test_moves(source: Any, target: Any, sent: Any) -> None:
    array = np.arange(72, dtype=np.float32).reshape(6, 12)
    asked = []

    def put(array: Any, sharding: Any) -> Any:
        # What is asked for is there in pieces: jax copies them one by one.
        pieces = {str(i) for i in array.sharding.devices_indices_map(array.shape).values()}
        assert {str(i) for i in sharding.devices_indices_map(array.shape).values()} <= pieces
        asked.append(sharding)
        return jax.device_put(array, sharding)

    ends = [list(sharding.mesh.devices.flat) for sharding in (source, target)]
    moved = mover(source, target, array.shape, *ends, put)(jax.device_put(array, source))
    assert asked == [sent]
    assert moved.sharding.is_equivalent_to(target, 2)
    np.testing.assert_array_equal(np.asarray(moved), array)
