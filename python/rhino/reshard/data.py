"""What a cross-mesh resharding is: tensors in tiles on devices, the network, and the messages that move them.

Owns the data that planning and running share. Knows neither jax nor MLIR, nor how programs are found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import prod

STRATEGIES = ("send-recv", "local-all-gather", "global-all-gather", "broadcast")  # how a unit travels
SCHEDULERS = ("naive", "load-balance", "greedy", "search", "optimal")  # who chooses senders and order
# [start, stop) per dimension.
Slice = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Tile:
    """What one device has, or shall have, of a tensor: a slice without strides. Empty slices are allowed."""

    device: int
    slice: Slice


@dataclass(frozen=True, slots=True)
class MovedTensor:
    """A tensor and where it goes. The source tiles cover it, each element once or more; the target tiles need not."""

    shape: tuple[int, ...]
    item_bytes: int
    source: tuple[Tile, ...]
    target: tuple[Tile, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor, once."""
        return prod(self.shape) * self.item_bytes


@dataclass(frozen=True, slots=True)
class Network:
    """Hosts and what joins them. A host sends one message and receives one at a time, at its bandwidth; full duplex.

    Attributes:
      host_of: the host of each device.
      bandwidth_bytes_s: of each host, all its NICs together, one direction. Exact, so that plans are.
      latency_s: of one message.
      local_bandwidth_bytes_s: between two devices of a host.
    """

    host_of: Mapping[int, int]
    bandwidth_bytes_s: Mapping[int, Fraction]
    latency_s: Fraction = Fraction(0)
    local_bandwidth_bytes_s: Fraction | None = None  # None: moving inside a host costs nothing


@dataclass(frozen=True, slots=True)
class Unit:
    """A maximal slice of a tensor whose elements all have the same holders and the same receivers (2211.05322 §3.1).

    `index` is its position in the program's units, `tensor` the position of its tensor, `nbytes` > 0. Receivers that
    hold it already are not listed; a unit all of whose receivers do is none.
    """

    index: int
    tensor: int
    slice: Slice
    nbytes: int
    holders: tuple[int, ...]
    receivers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Hop:
    """One message of a step: bytes of one bundle (`MessageProgram.bundles`) from a host to another.

    In period p it moves [at, at + length) with at = start + stride * (p - lag), and nothing (whatever is sent is
    not looked at) where p - lag is outside of range(chunks) of its phase. What lies past the bundle's end is padding.
    The source host holds these bytes at the beginning, or got them in an earlier step or period.
    """

    source: int
    target: int
    bundle: int
    start: int
    length: int
    stride: int = 0
    lag: int = 0


@dataclass(frozen=True, slots=True)
class MessageStep:
    """Messages at the same time: no host is the source of two, none the target of two."""

    hops: tuple[Hop, ...]

    @property
    def length(self) -> int:
        """Bytes of its longest message."""
        return max(hop.length for hop in self.hops)


@dataclass(frozen=True, slots=True)
class Phase:
    """Steps gone through once per period; `chunks` is 1 where bundles are sent whole.

    A pipelined broadcast over D hosts in K chunks has K + D - 1 periods.
    """

    periods: int
    chunks: int
    steps: tuple[MessageStep, ...]


@dataclass(frozen=True, slots=True)
class MessageProgram:
    """What every host does, in one order for all: a host passes over steps that it has no part in.

    Between devices of one host nothing is said: when the program is over, each target host has all units of its
    receivers, and each receiver takes them from there.

    Attributes:
      hosts: those that send or receive, ascending.
      bundles: positions of units that travel as one: the bytes of a bundle are those of its units, each flattened in
        row-major order, one after the other. The units of a bundle have the same holders' hosts and have to go to the
        same other hosts. A unit that has to go to another host is in one bundle, others are in one or none.
    """

    hosts: tuple[int, ...]
    units: tuple[Unit, ...]
    bundles: tuple[tuple[int, ...], ...]
    phases: tuple[Phase, ...]

    @property
    def bundle_bytes(self) -> tuple[int, ...]:
        """Bytes of each bundle."""
        return tuple(sum(self.units[unit].nbytes for unit in bundle) for bundle in self.bundles)
