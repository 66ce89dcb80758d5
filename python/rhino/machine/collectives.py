"""Seconds and bytes of collectives over mesh axes: NCCL's rings and trees on a cluster's links.

Owns the communication model. Knows mesh sizes and the cluster, nothing of programs: no ops, no tensors, no plans.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf, log2, prod
from typing import TYPE_CHECKING
from typing import Protocol as Interface

import numpy as np

from rhino.errors import RhinoError
from rhino.machine.links import Crossed, Groups, direct_path, members, mesh_groups, ring_link, ring_path, shared_memory
from rhino.machine.protocols import Line, Protocol, check_kind, ring_bytes, rounds

__all__ = [
    "AffineModel",
    "AxisLink",
    "CommModel",
    "Line",
    "RingModel",
    "copied_bytes",
    "envelope",
    "ring_bytes",
]

if TYPE_CHECKING:
    from rhino.machine.model import Cluster, Level


class CommModel(Interface):
    """What a planner asks of a communication model. Axes are indices into `sizes`; their order does not matter."""

    @property
    def sizes(self) -> tuple[int, ...]: ...

    @property
    def reduce_scatter(self) -> bool: ...

    def lowered(self, kind: str) -> str: ...

    def time(self, kind: str, axes: tuple[int, ...], nbytes_full: float) -> float: ...

    def affine(self, kind: str, axes: tuple[int, ...], nbytes_full: float = inf) -> Line: ...


class AffineModel(ABC):
    """What models share: per (kind, axes) a few lines, of which the lowest is the time. `_derive` gives these lines."""

    __slots__ = ("_lines", "reduce_scatter", "sizes")

    def __init__(self, sizes: Sequence[int], reduce_scatter: bool) -> None:
        if any(isinstance(size, bool) or size != int(size) or size < 1 for size in sizes):
            raise RhinoError(f"mesh sizes {list(sizes)} are not all positive integers", "give sizes of 1 or more")
        self.sizes = tuple(int(size) for size in sizes)
        self.reduce_scatter = reduce_scatter
        self._lines: dict[tuple[str, tuple[int, ...]], tuple[Line, ...]] = {}

    def lowered(self, kind: str) -> str:
        """The collective XLA really emits: where it has no reduce-scatter, an all-reduce (and a slice)."""
        return "all-reduce" if kind == "reduce-scatter" and not self.reduce_scatter else kind

    def bytes(self, kind: str, axes: tuple[int, ...], nbytes_full: float) -> float:
        """Bytes each device sends: `ring_bytes` of the collective that is really emitted."""
        return ring_bytes(self.lowered(kind), prod(self.sizes[axis] for axis in set(axes)), nbytes_full)

    def time(self, kind: str, axes: tuple[int, ...], nbytes_full: float) -> float:
        """Seconds of one collective over the devices that differ only along `axes`, all groups at once.

        Args:
          kind: one of `COLLECTIVES`.
          axes: indices into `sizes`; none, or only axes of size 1, costs nothing.
          nbytes_full: bytes of the full tensor, before an all-gather's operand or after a reduce-scatter's result
            is divided; for a collective-permute the bytes of one device's operand.
        """
        lines = self._lines.get((kind, axes)) or self.lines(kind, axes)
        if len(lines) == 1:
            return lines[0][0] + lines[0][1] * nbytes_full
        return min([a + b * nbytes_full for a, b in lines])

    def affine(self, kind: str, axes: tuple[int, ...], nbytes_full: float = inf) -> Line:
        """(seconds, seconds per byte) of the algorithm that is best at a size; by default that of large messages.

        Time is concave in bytes, so the line bounds it from above everywhere and meets it at `nbytes_full`.
        """
        lines = self.lines(kind, axes)
        if nbytes_full == inf:
            return lines[-1]
        return min(lines, key=lambda line: (line[0] + line[1] * nbytes_full, line[1]))

    def lines(self, kind: str, axes: tuple[int, ...]) -> tuple[Line, ...]:
        """The time as lines whose minimum it is, by rising start and falling slope. Computed once per argument."""
        key = (kind, axes)
        if key not in self._lines:
            check_kind(kind)
            if any(not 0 <= axis < len(self.sizes) for axis in axes):
                raise ValueError(f"axes {axes} are not axes of a mesh of {len(self.sizes)}")
            live = tuple(axis for axis in sorted(set(axes)) if self.sizes[axis] > 1)
            self._lines[key] = self._derive(self.lowered(kind), live) if live else ((0.0, 0.0),)
        return self._lines[key]

    @abstractmethod
    def _derive(self, kind: str, axes: tuple[int, ...]) -> tuple[Line, ...]:
        """The lines of a collective over axes of more than one device."""


@dataclass(frozen=True, slots=True)
class AxisLink:
    """What one mesh axis gets of the cluster, as a flat ring: the slowest link it crosses, shared fairly.

    Attributes:
      size: devices of the axis.
      bandwidth_bytes_s: bytes/s each device sends and receives at once, all groups of the axis active.
      latency_s: seconds of one hop.
      levels: names of the link levels its groups cross, fastest first; empty for an axis of one device.
    """

    size: int
    bandwidth_bytes_s: float
    latency_s: float
    levels: tuple[str, ...]


class RingModel(AffineModel):
    """Collectives of a mesh laid row-major over a cluster's devices, hosts holding consecutive ones.

    Time is that of the fastest of the protocols that the outermost level of links has which is crossed (NCCL's, with
    parameters of the cluster's file), or where it has none, of the textbook's ring, `rounds` hops and `ring_bytes`, and
    for an all-reduce tree. A ring's hops are counted level by level, and every level is as busy as an enumeration of
    all groups finds; the busiest gives the rate (docs/design/cost-model.md, "Collectives"). Threads that share memory
    have no rings: a collective within them is `a log2(n)` until they have met, and what each copies (`copied_bytes`) at
    the rate of a device.

    Args:
      cluster: supplies the levels of links.
      mesh_sizes: sizes of the axes, outermost first; may use fewer devices than the cluster has, never more.
    """

    __slots__ = ("cluster",)

    def __init__(self, cluster: Cluster, mesh_sizes: Sequence[int]) -> None:
        super().__init__(mesh_sizes, cluster.reduce_scatter)
        if prod(self.sizes) > cluster.num_devices:
            shape = "x".join(map(str, self.sizes))
            raise RhinoError(
                f"mesh {shape} needs {prod(self.sizes)} devices and {cluster.name} has {cluster.num_devices}",
                "use a smaller mesh or more hosts",
            )
        self.cluster = cluster

    def axis(self, index: int) -> AxisLink:
        """The link of one axis."""
        if self.sizes[index] == 1:
            return AxisLink(1, inf, 0.0, ())
        latency_s, seconds_per_byte, levels = ring_link(self.cluster, mesh_groups(self.sizes, (index,)))
        names = tuple(self.cluster.levels[level].name for level in levels)
        return AxisLink(self.sizes[index], 1 / seconds_per_byte, latency_s, names)

    def _derive(self, kind: str, axes: tuple[int, ...]) -> tuple[Line, ...]:
        groups, targets = mesh_groups(self.sizes, axes), None
        if kind == "collective-permute" and len(axes) > 1:
            # One over several axes is that in which these change places.
            sizes = [self.sizes[axis] for axis in axes]
            order = range(len(sizes), 0, -1)
            targets = groups.reshape(-1, *sizes).transpose(0, *order).reshape(groups.shape)
        return _collective(self.cluster, kind, groups, targets)


def group_seconds(cluster: Cluster, kind: str, groups: Sequence[Sequence[int]], nbytes_full: float) -> float:
    """Seconds of one collective as XLA emitted it, in all groups of devices at once; `RingModel.time` is of axes.

    Args:
      groups: equally many devices each, by their number in the cluster.
      nbytes_full: as of `AffineModel.time`.
    """
    devices = np.array([sorted(group) for group in groups], dtype=np.int64)
    return min(a + b * nbytes_full for a, b in _collective(cluster, kind, devices))


def outer_terms(cluster: Cluster, kind: str, groups: Groups) -> tuple[int, int, float]:
    """What a collective asks of the outermost level that it crosses, for a fit of that level's protocols.

    Returns:
      Steps over its links and over those below, and seconds per byte of the full tensor at the level's bandwidth.
    """
    n = groups.shape[1]
    path, inside = _path(cluster, kind, groups, None)
    start = [
        _outer(cluster, kind, n, inside, path, way)[0]
        for way in (Protocol(hop_s=1.0, inner_hop_s=0.0), Protocol(inner_hop_s=1.0))
    ]
    return round(start[0]), round(start[1]), _outer(cluster, kind, n, inside, path, Protocol())[2]


def copied_bytes(kind: str, n: int, nbytes_full: float) -> float:
    """Bytes that one device reads and writes in a collective of `n` threads which share memory.

    An all-gather reads and writes V. An all-reduce reads a part of every operand, V together, writes that part of every
    result, and copies its operand first: 3V whatever `n` is.
    An all-to-all does the same with V/n. For a collective-permute V is its operand, read and written.
    """
    check_kind(kind)
    if n <= 1:
        return 0.0
    times = {"all-reduce": 3.0, "all-to-all": 3.0 / n}
    return nbytes_full * times.get(kind, 2.0)


def envelope(lines: Sequence[Line]) -> tuple[Line, ...]:
    """The lines that are lowest for some number of bytes >= 0, by rising start (and so falling slope)."""
    kept: list[Line] = []
    for line in sorted(set(lines)):
        if kept and line[1] >= kept[-1][1]:
            continue
        # The middle one of three is useless if the outer two meet below it.
        while len(kept) > 1 and _meet(kept[-2], line) <= _meet(kept[-2], kept[-1]):
            kept.pop()
        kept.append(line)
    return tuple(kept)


def _meet(first: Line, second: Line) -> float:
    """Bytes from which the second line, the flatter one, is lower."""
    return (second[0] - first[0]) / (first[1] - second[1])


def _collective(cluster: Cluster, kind: str, groups: Groups, targets: Groups | None = None) -> tuple[Line, ...]:
    """All algorithms and protocols of one collective that runs in all groups at once.

    Args:
      targets: whom members of a collective-permute send to; by default each to the next.
    """
    n = groups.shape[1]
    if (level := shared_memory(cluster, groups)) is not None:
        return ((level.latency_s * log2(n), copied_bytes(kind, n, 1) / level.bandwidth_bytes_s),)
    path, inside = _path(cluster, kind, groups, targets)
    even = members(cluster, groups)
    inner = _inner_lines(cluster, kind, n, even or (1,) * len(cluster.levels), path[:-1])
    return envelope(
        [
            (max(start, beyond_s + floor), max(slope, rate))
            for start, beyond_s, slope in (
                _outer(cluster, kind, n, inside, path, way) for way in _ways(cluster.levels[path[-1].level], kind)
            )
            for floor, rate in inner
        ]
    )


def _path(cluster: Cluster, kind: str, groups: Groups, targets: Groups | None) -> tuple[tuple[Crossed, ...], int]:
    """The levels crossed, and a group's members in each block below the outermost of them, 1 where these differ."""
    if kind == "all-to-all":
        path = direct_path(cluster, groups)
    else:
        path = ring_path(cluster, groups, channels=kind != "collective-permute", targets=targets)
    even = members(cluster, groups)
    return path, even[path[-1].level - 1] if even and path[-1].level else 1


def _ways(level: Level, kind: str) -> tuple[Protocol, ...]:
    """The level's protocols of a kind; where it has none, the textbook's ring and, of an all-reduce, tree."""
    if kind in level.protocols:
        return level.protocols[kind]
    ring = Protocol(hop_s=level.latency_s)
    return (ring, Protocol(algorithm="tree", hop_s=level.latency_s)) if kind == "all-reduce" else (ring,)


def _inner_lines(cluster: Cluster, kind: str, n: int, even: tuple[int, ...], path: tuple[Crossed, ...]) -> list[Line]:
    """What levels below the outermost leave: no sooner than in a block alone, no faster than the busiest of them."""
    lines = [(0.0, 0.0)]
    for crossing in path:
        level = cluster.levels[crossing.level]
        # What a collective within a block of the fastest level takes before its bytes count.
        steps = rounds(kind, even[crossing.level]) if crossing is path[0] and even[crossing.level] > 1 else 0
        lines = [
            (max(floor, way.launch_s + way.hop_s * steps if steps else 0.0), max(rate, slope))
            for floor, rate in lines
            for way in _ways(level, kind)
            if way.algorithm == "ring"
            for slope in [way.sends(kind, n, crossing.seconds_per_byte, 1 / level.exchange_bytes_s)]
        ]
        lines = list(envelope(lines))
    return lines


def _outer(
    cluster: Cluster, kind: str, n: int, inside: int, path: tuple[Crossed, ...], way: Protocol
) -> tuple[float, float, float]:
    """One protocol of the outermost level: seconds of its start; those that it adds to a block's own; per byte."""
    top, level = path[-1], cluster.levels[path[-1].level]
    blocks, sent, start = n // inside, top.seconds_per_byte, way.launch_s
    if kind == "all-to-all":
        start, beyond_s = start + (n - 1) * way.hop_s, (n - inside) * way.hop_s
    elif kind == "collective-permute":
        # What crosses and what stays goes at once.
        start, beyond_s = start + way.hop_s, 0.0
    else:
        tree, twice = way.algorithm == "tree", rounds(kind, n) // (n - 1)
        beyond_s = (2 * ceil(log2(blocks)) if tree else twice * top.steps) * way.hop_s
        start += beyond_s
        for crossing in path[:-1]:
            hop = cluster.levels[crossing.level].latency_s if way.inner_hop_s is None else way.inner_hop_s
            start += (2 * (inside - 1) if tree else twice * crossing.steps) * hop
        if tree:
            # Between two blocks each of the two trees has one link, up and down; else a block is a leaf of one tree
            # and has two children in the other.
            sent *= (1 if blocks == 2 else 2) / ring_bytes(kind, n, 1)
    return start, beyond_s, way.sends(kind, n, sent, 1 / level.exchange_bytes_s)
