"""Which pipelines are tried: stages, replicas of a stage, devices of a replica, micro-batches.

Owns the enumeration. Knows neither programs nor costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rhino.machine import Cluster
from rhino.machine.units import counted
from rhino.pipeline.schedule import interleaved_in_flight, warmup_counts
from rhino.pipeline.search.placement import deal


@dataclass(frozen=True, slots=True)
class Shape:
    """One way to share out devices and batch.

    Attributes:
      widths: by group of devices, those of one replica: what the sharding search lays a program out on.
      replicas: copies of each stage, which take different micro-batches; their gradients are summed once a step.
      parts: parts the batch is cut into, all replicas together.
      chunks: stages that each group runs, stage s on group s mod `groups`: more than one are interleaved.
    """

    widths: tuple[int, ...]
    replicas: int
    parts: int
    chunks: int = 1

    @property
    def groups(self) -> int:
        """Device groups of the pipeline."""
        return len(self.widths)

    @property
    def stages(self) -> int:
        """Stages of all groups."""
        return self.groups * self.chunks

    @property
    def stage_widths(self) -> tuple[int, ...]:
        """By stage, devices of one replica."""
        return self.widths * self.chunks

    @property
    def width(self) -> int:
        """The most devices that one replica of a stage has: those of the first."""
        return max(self.widths)

    @property
    def distinct(self) -> tuple[int, ...]:
        """The different widths, in the order of their first stages; one where all stages are alike."""
        return tuple(dict.fromkeys(self.widths))

    @property
    def devices(self) -> int:
        """Devices of all stages."""
        return self.replicas * sum(self.widths)

    @property
    def microbatches(self) -> int:
        """Micro-batches that each replica runs in a step."""
        return self.parts // self.replicas

    @property
    def in_flight(self) -> tuple[int, ...]:
        """By stage, the micro-batches whose activations 1F1B holds: no schedule holds fewer and keeps all busy."""
        if self.chunks > 1:
            return interleaved_in_flight(self.stages, self.groups, self.microbatches)
        return warmup_counts("1f1b", range(self.stages, 0, -1), self.microbatches)

    @property
    def name(self) -> str:
        """For people: "4 stages of 2x4, 32 micro-batches", "8 stages on 4 groups of 2x4, 32 micro-batches"."""
        each = str(self.width) if len(self.distinct) == 1 else "+".join(map(str, self.widths))
        shape = f"{self.replicas}x{each}" if self.replicas > 1 else each
        on = f" on {self.groups} groups" if self.chunks > 1 else ""
        return f"{counted(self.stages, 'stage')}{on} of {shape}, {self.microbatches} micro-batches"


def widths(cluster: Cluster, groups: int = 0) -> list[int]:
    """Devices one replica may have, fewest first: parts of a host that divide it, or whole hosts that divide them all.

    `groups` 0 is any number.
    """
    n, per_host = cluster.num_devices, cluster.devices_per_host
    found = [d for d in range(1, n + 1) if n % d == 0 and (per_host % d == 0 or d % per_host == 0)]
    return [d for d in found if not groups or n % (groups * d) == 0]


def shapes(
    cluster: Cluster,
    batch: int,
    *,
    stages: int = 0,
    microbatches: int = 0,
    shares: Sequence[int] = (1,),
    fewer: bool = False,
    uneven: bool = False,
) -> Iterator[Shape]:
    """All shapes that use every device, in a fixed order. Stages are equal, unless the number asked for cannot be.

    Args:
      batch: examples in a step; parts divide it.
      stages, microbatches: asked for by the user; 0 leaves them open.
      shares: numbers of stages that each group may run; they divide those asked for.
      fewer: instead of so many micro-batches, the most up to these that divide the batch.
      uneven: instead, those with other numbers of stages than equal ones can have.
    """
    counts = [d for d in range(1, batch + 1) if batch % d == 0]
    found = [(*shape, c) for c in shares for shape in _equal(cluster, stages // c) if c == 1 or len(shape[0]) > 1]
    if uneven or (stages and not found and 1 in shares):
        equal = {len(given) for given, _, _ in found}
        wanted = [stages] if stages else range(2, cluster.num_devices)
        found = [(deal(cluster, n), 1, 1) for n in wanted if n not in equal and n <= cluster.num_devices]
    for given, replicas, chunks in found:
        possible = [parts for parts in counts if parts % replicas == 0]
        if microbatches and fewer:
            possible = [parts for parts in possible if parts // replicas <= microbatches][-1:]
        elif microbatches:
            possible = [parts for parts in possible if parts // replicas == microbatches]
        for parts in possible:
            yield Shape(given, replicas, parts, chunks)


def _equal(cluster: Cluster, groups: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Widths of equal groups, of so many or any number of them, and the replicas of each."""
    n, per_host = cluster.num_devices, cluster.devices_per_host
    for width in widths(cluster, groups):
        for count in [s for s in range(1, n // width + 1) if n % (width * s) == 0]:
            replicas = n // (width * count)
            together = replicas * width
            if (groups and count != groups) or (per_host % together and together % per_host):
                continue
            yield (width,) * count, replicas
