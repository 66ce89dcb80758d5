"""Arrays on devices that are not all this process's: made of what each process has, without asking the others.

Owns placing. `jax.device_put` would compare the value on all processes, of which only some have a part in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from rhino.errors import RhinoError


def put(leaf: Any, sharding: Any) -> jax.Array:
    """An array as a sharding has it.

    Args:
      leaf: anything that jax takes for an array. Where devices of other processes have a part of the result, it must be
        the same on all of them, or be there already.

    Raises:
      RhinoError: it is on other devices of several processes.
    """
    if isinstance(leaf, jax.Array) and leaf.sharding == sharding and leaf.committed:
        return leaf
    here = not isinstance(leaf, jax.Array) or leaf.is_fully_addressable
    if sharding.is_fully_addressable and here:
        return jax.device_put(leaf, sharding)
    if not here:
        if not (leaf.is_fully_replicated and leaf.addressable_shards):
            raise RhinoError(
                f"an array {leaf.dtype}{list(leaf.shape)} is on other devices than the step keeps it on, "
                "and no process has all of it",
                "make it with step.init or restore it with rhino.checkpoint, which place it as the plan says",
            )
        leaf = leaf.addressable_shards[0].data
    if not isinstance(leaf, jax.Array):
        leaf = np.asarray(leaf)
    pieces = [
        jax.device_put(leaf[index], device)
        for device, index in sharding.addressable_devices_indices_map(leaf.shape).items()
    ]
    return jax.make_array_from_single_device_arrays(leaf.shape, sharding, pieces, dtype=leaf.dtype)


def handle(shape: Sequence[int], dtype: Any, sharding: Any) -> jax.Array:
    """Stands for an array none of which this process has."""
    return jax.make_array_from_single_device_arrays(tuple(shape), sharding, [], dtype=dtype)


def is_here(devices: Sequence[Any]) -> bool:
    """Whether this process has any of the devices."""
    return any(device.process_index == jax.process_index() for device in devices)
