"""The way of an array from one group of devices to another that keeps it otherwise.

Owns the hops. `jax.device_put` sends piece by piece without waiting, but only pieces that are there as they are wanted;
else it waits until the array is computed and goes through the host, and so would hold up everything behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Put = Callable[[Any, Any], Any]


def whole(devices: Sequence[Any]) -> NamedSharding:
    """All of an array on each device."""
    return NamedSharding(Mesh(np.array(devices), ("device",)), PartitionSpec())


def mover(
    source: Any, target: Any, shape: tuple[int, ...], senders: Sequence[Any], receivers: Sequence[Any], put: Put
) -> Callable[[Any], Any]:
    """What brings an array of a shape from one sharding to another, on the devices of two groups.

    Where the receivers do not want the senders' very pieces, the array is put together on the senders, sent whole to
    each receiver, and cut there.

    Args:
      put: how an array gets to the same pieces on other devices.
    """
    if _pieces(source, shape) == _pieces(target, shape):
        return lambda array: put(array, target)
    gather = None if source.is_fully_replicated else _resharded(whole(senders))
    there = target if target.is_fully_replicated else whole(receivers)
    cut = None if target.is_fully_replicated else _resharded(target)

    def move(array: Any) -> Any:
        if gather is not None:
            array = gather(array)
        array = put(array, there)
        return array if cut is None else cut(array)

    return move


def _pieces(sharding: Any, shape: tuple[int, ...]) -> list[Any]:
    """What each device has of an array, in the order of the devices."""
    return list(sharding.devices_indices_map(shape).values())


@cache
def _resharded(sharding: Any) -> Callable[[Any], Any]:
    def reshard(array: Any) -> Any:
        return array

    return jax.jit(reshard, out_shardings=sharding)
