"""What groups of devices get of a cluster's links: every group enumerated, every NIC's load counted.

Owns the sharing of links among groups that communicate at once. Knows devices as row-major indices, not programs.
"""

from __future__ import annotations

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


def splits(cluster: Cluster, groups: Groups) -> list[tuple[Groups, Groups]]:
    """Every cut of all groups at a level's blocks into equal parts: (groups within blocks, groups across them)."""
    found, seen = [], set()
    count, n = groups.shape
    for level in cluster.levels[:-1]:
        blocks = groups // level.size
        k = int((blocks[0] == blocks[0, 0]).sum())
        if k in seen or not 1 < k < n or n % k:
            continue
        parts = blocks.reshape(count, n // k, k)
        if (parts == parts[:, :, :1]).all() and (parts[:, 1:, 0] != parts[:, :-1, 0]).all():
            seen.add(k)
            inner = groups.reshape(-1, k)
            outer = groups.reshape(count, n // k, k).swapaxes(1, 2).reshape(-1, n // k)
            found.append((inner, outer))
    return found


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


def ring_link(cluster: Cluster, groups: Groups) -> tuple[float, float, tuple[int, ...]]:
    """(seconds per hop, seconds per byte, levels crossed) of rings in ascending device order in all groups at once.

    A ring leaves a host once however many members it has there, so the rings that leave a host share its NICs:
    the busiest NIC carries ceil(rings / NICs) of them.
    """
    targets = np.roll(groups, -1, axis=1)
    joined = _joining_level(cluster, groups, targets)
    slope, crossed = 0.0, []
    for index, size, passes in _units(cluster):
        level = cluster.levels[index]
        uses = (groups // size != targets // size) & (joined >= index if passes else joined == index)
        if uses.any():
            rings = int(np.bincount(groups[uses] // size).max())
            slope = max(slope, ceil(rings / level.nics) / level.exchange_bytes_s)
            crossed.append(index)
    hop = max(cluster.levels[index].latency_s for index in crossed)
    return hop, slope, tuple(crossed)


def shared_memory(cluster: Cluster, groups: Groups) -> Level | None:
    """The level of shared memory that holds each of the groups whole, or None."""
    for level in cluster.levels:
        blocks = groups // level.size
        if level.is_memory and bool((blocks == blocks[:, :1]).all()):
            return level
    return None


def direct_exchange(cluster: Cluster, groups: Groups) -> tuple[float, float]:
    """An all-to-all of pairwise messages of V/n^2: hops of latency, and the load of the busiest link.

    With one member per host, or one host, it is `(n-1)a + V(n-1)/(n^2 B)`; with k members per host only n-k of each
    member's messages leave the host, but those of all members share its NICs.
    """
    n = groups.shape[1]
    slope, hop = 0.0, 0.0
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
            slope = max(slope, float(busiest) / n**2 / level.exchange_bytes_s)
            hop = max(hop, level.latency_s)
    return (n - 1) * hop, slope


def _peers(groups: Groups, size: int | None) -> Groups:
    """For each member of each group, how many members of its group share its block of `size` (None: everything)."""
    if size is None:
        return np.full(groups.shape, groups.shape[1], dtype=np.int64)
    blocks = groups // size
    keys = blocks + np.arange(groups.shape[0])[:, None] * (int(blocks.max()) + 1)
    _, place, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return np.asarray(counts[place].reshape(groups.shape), dtype=np.int64)
