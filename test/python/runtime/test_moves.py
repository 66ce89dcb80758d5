"""Arrays sent between groups of devices that hold other pieces of them: right, and without waiting for them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rhino.runtime.moves import mover


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
