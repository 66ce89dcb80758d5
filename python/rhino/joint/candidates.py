"""Which pipelines are tried: stages, replicas of a stage, devices of a replica, micro-batches.

Owns the enumeration. Knows neither programs nor costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rhino.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Shape:
    """One way to share out devices and batch.

    Attributes:
      stages: device groups of the pipeline.
      replicas: copies of each stage, which take different micro-batches; their gradients are summed once a step.
      width: devices of one replica: what the sharding search lays a program out on.
      slices: parts the batch is cut into, all replicas together.
    """

    stages: int
    replicas: int
    width: int
    slices: int

    @property
    def microbatches(self) -> int:
        """Micro-batches that each replica runs in a step."""
        return self.slices // self.replicas

    @property
    def name(self) -> str:
        """For people: "4 stages of 2x4, 32 micro-batches"."""
        shape = f"{self.replicas}x{self.width}" if self.replicas > 1 else str(self.width)
        return f"{self.stages} stages of {shape}, {self.microbatches} micro-batches"


def widths(cluster: Cluster, stages: int = 0) -> list[int]:
    """Devices one replica may have, fewest first: parts of a host that divide it, or whole hosts that divide them all.

    `stages` 0 is any number.
    """
    n, per_host = cluster.num_devices, cluster.devices_per_host
    found = [d for d in range(1, n + 1) if n % d == 0 and (per_host % d == 0 or d % per_host == 0)]
    return [d for d in found if not stages or n % (stages * d) == 0]


def shapes(cluster: Cluster, batch: int, *, stages: int = 0, microbatches: int = 0) -> Iterator[Shape]:
    """All shapes that use every device, in a fixed order.

    Args:
      batch: examples in a step; slices divide it.
      stages, microbatches: asked for by the user; 0 leaves them open.
    """
    n = cluster.num_devices
    counts = [d for d in range(1, batch + 1) if batch % d == 0]
    for width in widths(cluster, stages):
        for count in [s for s in range(1, n // width + 1) if n % (width * s) == 0]:
            if stages and count != stages:
                continue
            replicas = n // (width * count)
            block = replicas * width
            per_host = cluster.devices_per_host
            if per_host % block and block % per_host:
                continue
            for slices in counts:
                if slices % replicas:
                    continue
                if microbatches and slices // replicas != microbatches:
                    continue
                yield Shape(count, replicas, width, slices)
