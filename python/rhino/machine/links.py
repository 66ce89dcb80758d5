"""What groups of devices get of a cluster's links: every group enumerated, every NIC's load counted.

Owns the sharing of links among groups that communicate at once. Knows devices as row-major indices, not programs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from rhino.machine.model import Cluster, Level

# [groups, members] device indices, ascending in each row; host h holds the devices h*k .. h*k+k-1.
Groups = npt.NDArray[np.int64]


def mesh_groups(sizes: tuple[int, ...], axes: tuple[int, ...]) -> Groups:
    """The groups of devices of a row-major mesh that differ only along `axes`, which must be ascending."""
    devices = np.arange(prod(sizes), dtype=np.int64).reshape(sizes)
    others = [axis for axis in range(len(sizes)) if axis not in axes]
    return devices.transpose([*others, *axes]).reshape(-1, prod(sizes[axis] for axis in axes))


@dataclass(frozen=True, slots=True)
class Crossed:
    """What a collective of several groups at once asks of one level of links.

    Attributes:
      level: its index in the cluster.
      steps: how many of a ring's n steps cross it, the way back to the start left out; those of a tree are its members.
      seconds_per_byte: of what each device sends in a ring, on the busiest NIC, at the level's full bandwidth.
    """

    level: int
    steps: int
    seconds_per_byte: float


def members(cluster: Cluster, groups: Groups) -> tuple[int, ...] | None:
    """Of every level the members that each group has in each block it touches; None where these are not all as many."""
    count, n = groups.shape
    found = []
    for level in cluster.levels[:-1]:
        blocks = groups // level.size
        k = int((blocks[0] == blocks[0, 0]).sum())
        if n % k:
            return None
        parts = blocks.reshape(count, n // k, k)
        if (parts != parts[:, :, :1]).any() or (parts[:, 1:, 0] == parts[:, :-1, 0]).any():
            return None
        found.append(k)
    return (*found, n)


def _joining_level(cluster: Cluster, sources: Groups, targets: Groups) -> Groups:
    """For each pair of devices, the index of the lowest level that joins them."""
    found = np.full(sources.shape, len(cluster.levels) - 1, dtype=np.int64)
    for index in range(len(cluster.levels) - 2, -1, -1):
        size = cluster.levels[index].size
        found[sources // size == targets // size] = index
    return found


def _units(cluster: Cluster) -> list[tuple[int, int, bool]]:
    """(level, devices of the groups it joins, whether traffic to higher levels passes through it)."""
    below = [1, *(level.size for level in cluster.levels[:-1])]
    # A NIC carries all that leaves its host; NVLink carries nothing that does.
    return [(index, size, size >= cluster.devices_per_host) for index, size in enumerate(below)]


def ring_path(
    cluster: Cluster, groups: Groups, channels: bool = True, targets: Groups | None = None
) -> tuple[Crossed, ...]:
    """The levels that rings in ascending device order cross in all groups at once, the fastest first.

    A ring leaves a host once however many members it has there, and the rings that leave a host share its NICs: the
    busiest NIC carries ceil(rings / NICs) of them. A group with k members in every block opens k rings, each with a
    part of the data and, where a host has as many NICs, each through the NIC of another member: NCCL's channels.

    Args:
      channels: False for one ring a group, as of a collective-permute, whose bytes do not divide.
      targets: whom members send to, where that is not the next of a ring.
    """
    n = groups.shape[1]
    targets = np.roll(groups, -1, axis=1) if targets is None else targets
    joined = _joining_level(cluster, groups, targets)
    even = members(cluster, groups)
    top, found = int(joined.max()), []
    for index, size, passes in _units(cluster):
        level = cluster.levels[index]
        uses = (groups // size != targets // size) & (joined >= index if passes else joined == index)
        if not uses.any():
            continue
        rings = int(np.bincount(groups[uses] // size).max())
        opened = min(even[index - 1], level.nics) if channels and even and index else 1
        slope = ceil(rings * opened / level.nics) / opened / level.exchange_bytes_s
        inside, within = (even[index - 1] if index else 1, even[index]) if even else (1, n)
        steps = n // inside - n // within if index < top else n // inside - 1
        found.append(Crossed(index, steps if even or index == top else 0, slope))
    return tuple(found)


def ring_link(cluster: Cluster, groups: Groups) -> tuple[float, float, tuple[int, ...]]:
    """(seconds per hop, seconds per byte, levels crossed) of one flat ring in every group, all at once."""
    path = ring_path(cluster, groups, channels=False)
    hop = max(cluster.levels[crossing.level].latency_s for crossing in path)
    return hop, max(crossing.seconds_per_byte for crossing in path), tuple(crossing.level for crossing in path)


def shared_memory(cluster: Cluster, groups: Groups) -> Level | None:
    """The level of shared memory that holds each of the groups whole, or None."""
    for level in cluster.levels:
        blocks = groups // level.size
        if level.is_memory and bool((blocks == blocks[:, :1]).all()):
            return level
    return None


def direct_path(cluster: Cluster, groups: Groups) -> tuple[Crossed, ...]:
    """As `ring_path` of an all-to-all, of pairwise messages of V/n^2; seconds per byte are of all that a device sends.

    With one member per host, or one host, they are those of a link; with k members per host only n-k of each member's
    messages leave the host, but those of all members share its NICs. A device sends all it has through one NIC.
    """
    n = groups.shape[1]
    found = []
    for index, size, passes in _units(cluster):
        level = cluster.levels[index]
        reached = n if passes else _peers(groups, level.size if index < len(cluster.levels) - 1 else None)
        leaving = reached - _peers(groups, size)
        senders = leaving > 0
        if senders.any():
            units = groups[senders] // size
            messages = np.bincount(units, weights=leaving[senders])
            active = np.bincount(units)
            busiest = (messages / np.maximum(active, 1) * np.ceil(active / level.nics)).max()
            found.append(Crossed(index, n - 1, float(busiest) / (n - 1) / level.exchange_bytes_s))
    return tuple(found)


def _peers(groups: Groups, size: int | None) -> Groups:
    """For each member of each group, how many members of its group share its block of `size` (None: everything)."""
    if size is None:
        return np.full(groups.shape, groups.shape[1], dtype=np.int64)
    blocks = groups // size
    keys = blocks + np.arange(groups.shape[0])[:, None] * (int(blocks.max()) + 1)
    _, place, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return np.asarray(counts[place].reshape(groups.shape), dtype=np.int64)
