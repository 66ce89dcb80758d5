"""The way of an array from one group of devices to another of the same process.

Owns the choice between sending the very pieces and cutting them anew, and the network that a process is to itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rhino.reshard.data import Network
from rhino.runtime.edges import ArrayExchange

Put = Callable[[Any, Any], Any]


def whole(devices: Sequence[Any]) -> NamedSharding:
    """All of an array on each device."""
    return NamedSharding(Mesh(np.array(devices), ("device",)), PartitionSpec())


def mover(source: Any, target: Any, aval: Any, put: Put) -> Callable[[Any], Any]:
    """What brings an array from one sharding to another, without waiting until it is computed.

    `jax.device_put` sends piece by piece without waiting only where the pieces are there as they are wanted; else it
    waits and goes through the host, and would hold up everything behind it. Other pieces are cut and joined by an
    `ArrayExchange` on one host, which sends each receiver what it needs.

    Args:
      aval: shape and dtype.
      put: how an array gets to the same pieces on other devices.
    """
    if _pieces(source, aval.shape) == _pieces(target, aval.shape):
        return lambda array: put(array, target)
    here = {device.id: 0 for device in (*source.device_set, *target.device_set)}
    edge = ArrayExchange([source], [target], [aval], network=Network(here, {0: Fraction(1)}))
    return lambda array: edge([array])[0]


def _pieces(sharding: Any, shape: tuple[int, ...]) -> list[Any]:
    """What each device has of an array, in the order of the devices."""
    return list(sharding.devices_indices_map(shape).values())
