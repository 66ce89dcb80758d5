"""Whether what XLA compiled fits the devices that it was planned for, and what to plan with if it does not.

Owns that comparison and what is said of it. Where memory goes is `rhino.program.memory`'s to predict.
"""

from __future__ import annotations

from rhino.machine import Cluster
from rhino.machine.units import nbytes


def say_no_room(peak_bytes: int, predicted_bytes: int, cluster: Cluster) -> str:
    """A warning if a program needs more than a device has; empty if it does not, and for CPUs, which share memory.

    It names the limit to plan within: what plans may use, less by as much as the prediction was too small.

    Args:
      peak_bytes: what XLA allocates on each device.
      predicted_bytes: what was predicted of that.
    """
    device = cluster.device
    if device.xla_target == "cpu" or peak_bytes <= device.memory_bytes:
        return ""
    limit = int(device.plan_bytes * min(1.0, predicted_bytes / peak_bytes))
    return (
        f"XLA needs {nbytes(peak_bytes)} on each device, which has {nbytes(device.memory_bytes)}; "
        f"{nbytes(predicted_bytes)} were predicted. Plan again with memory_limit={limit} (--memory-limit {limit})"
    )
