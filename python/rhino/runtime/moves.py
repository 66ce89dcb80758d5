"""The way of an array from one group of devices to another of the same process.

Owns the choice between sending the very pieces and cutting them anew, and the shardings that types say. Nothing of it
is a message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rhino.dialect import sdy
from rhino.reshard.data import MessageProgram
from rhino.runtime.edges import ArrayExchange

Put = Callable[[Any, Any], Any]


def whole(devices: Sequence[Any]) -> NamedSharding:
    """All of an array on each device."""
    return NamedSharding(Mesh(np.array(devices), ("device",)), PartitionSpec())


def as_typed(dims: Sequence[Sequence[str]], axes: Sequence[tuple[str, int]], devices: Sequence[Any]) -> NamedSharding:
    """The sharding that a type says; a part of an axis is an axis of its own.

    Args:
      dims: axis texts by dimension, major first.
      axes: of the mesh, outermost first.
      devices: of the mesh, row-major.
    """
    sizes = dict(axes)
    # Of each axis text, the axis and how many devices follow each other in one of its parts, and in all of them.
    spans: list[list[tuple[str, int, int]]] = []
    for names in dims:
        cuts = [(name, *sdy.sub_axis(name, sizes)) for name in names]
        spans.append([(name.split(":")[0], after, after * parts) for name, parts, after in cuts])
    ends = {axis: {1, size} for axis, size in axes}
    for axis, low, high in chain(*spans):
        ends[axis] |= {low, high}
    parts = [(axis, low, high) for axis in sizes for low, high in [*pairwise(sorted(ends[axis]))][::-1]]
    spec = [
        tuple(f"{a}:{low}" for name, first, last in span for a, low, high in parts if a == name and first <= low < last)
        for span in spans
    ]
    if not parts:
        return whole(devices)
    grid = np.empty(len(devices), dtype=object)
    grid[:] = devices
    mesh = Mesh(grid.reshape([high // low for _, low, high in parts]), tuple(f"{a}:{low}" for a, low, _ in parts))
    return NamedSharding(mesh, PartitionSpec(*spec))


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
    edge = ArrayExchange([source], [target], [aval], MessageProgram((), (), (), ()), here)
    return lambda array: edge([array])[0]


def _pieces(sharding: Any, shape: tuple[int, ...]) -> list[Any]:
    """What each device has of an array, in the order of the devices."""
    return list(sharding.devices_indices_map(shape).values())
