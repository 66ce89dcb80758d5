"""Whether what XLA compiled fits the devices that it was planned for, and what to plan with if it does not.

Owns that comparison and what is said of it. Where memory goes is `rhino.program.memory`'s to predict.
"""

from __future__ import annotations

from dataclasses import dataclass

from rhino.machine import Cluster
from rhino.machine.units import nbytes


@dataclass(frozen=True, slots=True)
class Shortage:
    """A program that needs more memory than a device has; bytes per device.

    `limit` is what to plan within: what plans may use, less by as much as the prediction was too small. No plan within
    it is the one that did not fit.
    """

    peak_bytes: int
    predicted_bytes: int
    memory_bytes: int
    limit: int

    @property
    def found(self) -> str:
        """What is needed, what there is and what was predicted: a sentence without its end."""
        return (
            f"XLA needs {nbytes(self.peak_bytes)} on each device, which has {nbytes(self.memory_bytes)}; "
            f"{nbytes(self.predicted_bytes)} were predicted"
        )

    def __str__(self) -> str:
        """As a warning, with its remedy."""
        return f"{self.found}. Plan again with memory_limit={self.limit} (--memory-limit {self.limit})"


def shortage(peak_bytes: int, predicted_bytes: int, cluster: Cluster) -> Shortage | None:
    """What a program lacks, if it does; CPUs share their memory, and lack none.

    Args:
      peak_bytes: what XLA allocates on each device.
      predicted_bytes: what was predicted of that.
    """
    device = cluster.device
    if device.xla_target == "cpu" or peak_bytes <= device.memory_bytes:
        return None
    limit = int(device.plan_bytes * min(1.0, predicted_bytes / peak_bytes))
    return Shortage(peak_bytes, predicted_bytes, device.memory_bytes, limit)
