"""Arrays on groups of devices that need not be this process's: placing them, and what stands for those of others.

Owns what the arguments of a pipeline may be. Placing itself is `rhino.distributed.arrays`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from rhino.distributed import arrays as distributed
from rhino.errors import RhinoError
from rhino.program.element_types import type_text


def put(leaf: Any, sharding: Any) -> jax.Array:
    """An array as a sharding has it; every process that has a part of that calls it, others need not.

    Args:
      leaf: anything that jax takes for an array. Where devices of other processes have a part of the result, it must be
        the same on all of them, or be there already.

    Raises:
      RhinoError: it is on other devices of several processes.
    """
    if isinstance(leaf, jax.Array):
        if leaf.committed and leaf.sharding.is_equivalent_to(sharding, leaf.ndim):
            return leaf
        if not leaf.is_fully_addressable and not (leaf.is_fully_replicated and leaf.addressable_shards):
            raise RhinoError(
                f"an array {type_text(leaf.dtype, leaf.shape)} is on other devices than the step keeps it on, "
                "and this process does not have all of it",
                "make it with step.init or restore it with rhino.checkpoint, which place it as the plan says",
            )
    return distributed.put(leaf, sharding)


def handle(shape: Sequence[int], dtype: Any, sharding: Any) -> jax.Array:
    """Stands for an array none of which this process has."""
    return jax.make_array_from_single_device_arrays(tuple(shape), sharding, [], dtype=dtype)


def is_here(devices: Sequence[Any]) -> bool:
    """Whether this process has any of the devices."""
    return any(device.process_index == jax.process_index() for device in devices)
