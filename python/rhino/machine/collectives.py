"""Seconds and bytes of collectives over mesh axes: rings, trees and hierarchies on a cluster's links.

Owns the communication model. Knows mesh sizes and the cluster, nothing of programs: no ops, no tensors, no plans.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf, log2, prod
from typing import TYPE_CHECKING, Protocol

from rhino.errors import RhinoError
from rhino.machine.links import Groups, direct_exchange, mesh_groups, ring_link, shared_memory, splits
from rhino.program.operations import COLLECTIVES

if TYPE_CHECKING:
    from rhino.machine.model import Cluster


Line = tuple[float, float]  # (seconds, seconds per byte of the full tensor)


def ring_bytes(kind: str, n: int, nbytes_full: float) -> float:
    """Bytes each device of a group of `n` sends under ring formulas, for a full tensor of `nbytes_full` bytes.

    all-gather, reduce-scatter V(n-1)/n; all-reduce 2V(n-1)/n; all-to-all V(n-1)/n^2; for a collective-permute V is
    its operand, sent whole. A group of one sends nothing. ValueError for an unknown kind.
    """
    _check_kind(kind)
    if n <= 1:
        return 0.0
    if kind == "collective-permute":
        return float(nbytes_full)
    shares = {"all-reduce": 2 * (n - 1) / n, "all-to-all": (n - 1) / n**2}
    return nbytes_full * shares.get(kind, (n - 1) / n)


class CommModel(Protocol):
    """What a planner asks of a communication model. Axes are indices into `sizes`; their order does not matter."""

    @property
    def sizes(self) -> tuple[int, ...]: ...

    @property
    def reduce_scatter(self) -> bool: ...

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
            _check_kind(kind)
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

    Time is the best of three algorithms, each with hop latency `a` and bandwidth `B` measured by enumerating every
    group: a flat ring, `(n-1)a + V(n-1)/(nB)` for all-gather and reduce-scatter and twice that for all-reduce; for
    all-reduce NCCL's double binary tree, `2 ceil(log2 n) a + 2V/B`; and, where each group has k > 1 members in every
    host it touches, the hierarchy of a reduce-scatter within hosts, the collective across them on 1/k of the data
    by k groups at once, and an all-gather within. Threads that share memory have no rings: a collective within them is
    `a log2(n)` until they have met, and what each copies (`copied_bytes`) at the rate of a device.

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
        return _collective(self.cluster, kind, mesh_groups(self.sizes, axes))


def copied_bytes(kind: str, n: int, nbytes_full: float) -> float:
    """Bytes that one device reads and writes in a collective of `n` threads which share memory.

    An all-gather reads and writes V. An all-reduce reads a part of every operand, V together, writes that part of every
    result, and copies its operand first: 3V whatever `n` is.
    An all-to-all does the same with V/n. For a collective-permute V is its operand, read and written.
    """
    _check_kind(kind)
    if n <= 1:
        return 0.0
    times = {"all-reduce": 3.0, "all-to-all": 3.0 / n}
    return nbytes_full * times.get(kind, 2.0)


def _check_kind(kind: str) -> None:
    if kind not in COLLECTIVES:
        raise ValueError(f"unknown collective {kind!r}; known: {', '.join(COLLECTIVES)}")


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


def _chain(*phases: tuple[float, tuple[Line, ...]]) -> tuple[Line, ...]:
    """Phases one after the other, each on a share of the bytes."""
    total: tuple[Line, ...] = ((0.0, 0.0),)
    for share, lines in phases:
        total = envelope([(a + c, b + d * share) for a, b in total for c, d in lines])
    return total


def _collective(cluster: Cluster, kind: str, groups: Groups) -> tuple[Line, ...]:
    """All algorithms of one collective that runs in all groups at once."""
    n = groups.shape[1]
    if (level := shared_memory(cluster, groups)) is not None:
        return ((level.latency_s * log2(n), copied_bytes(kind, n, 1) / level.bandwidth_bytes_s),)
    if kind == "all-to-all":
        lines = [direct_exchange(cluster, groups)]
    else:
        hop, slope, _ = ring_link(cluster, groups)
        rounds = {"all-reduce": 2 * (n - 1), "collective-permute": 1}.get(kind, n - 1)
        lines = [(rounds * hop, slope * ring_bytes(kind, n, 1))]
        if kind == "all-reduce":
            lines.append((2 * ceil(log2(n)) * hop, 2 * slope))
    if kind != "collective-permute":
        for inner, outer in splits(cluster, groups):
            lines += _hierarchical(cluster, kind, inner, outer)
    return envelope(lines)


def _hierarchical(cluster: Cluster, kind: str, inner: Groups, outer: Groups) -> tuple[Line, ...]:
    """Within blocks of k members, and across them on 1/k of the data."""
    k, blocks = inner.shape[1], outer.shape[1]
    across = (1 / k, _collective(cluster, kind, outer))
    if kind == "all-reduce":
        scatter, gather = (_collective(cluster, part, inner) for part in ("reduce-scatter", "all-gather"))
        return _chain((1.0, scatter), across, (1.0, gather))
    # In both phases of an all-to-all each device exchanges all of its 1/n of the tensor.
    return _chain((1 / blocks if kind == "all-to-all" else 1.0, _collective(cluster, kind, inner)), across)
