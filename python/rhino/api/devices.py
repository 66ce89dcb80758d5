"""Which of this process's devices a cluster means, if any.

Owns the match and its errors. Knows nothing of plans.
"""

from __future__ import annotations

from typing import Any

import jax

from rhino.distributed import Job, current_job
from rhino.errors import RhinoError
from rhino.machine import Cluster
from rhino.machine.local import host_of


def is_here(cluster: Cluster) -> bool:
    """Whether this process's devices are of the cluster's kind."""
    if cluster.base_name == "local" or cluster.device.xla_target == "cpu":
        return True
    kind = jax.devices()[0].device_kind.lower().replace("-", " ").split()
    return cluster.device.kind in kind


def local_devices(cluster: Cluster) -> list[Any] | None:
    """This process's devices, one for each of the cluster's; None if there are too few, or of another kind."""
    if not is_here(cluster):
        return None
    devices = _all_devices(cluster)
    if cluster.device_ids:
        by_id = {device.id: device for device in devices}
        return [by_id[at] for at in cluster.device_ids] if all(at in by_id for at in cluster.device_ids) else None
    return list(devices[: cluster.num_devices]) if len(devices) >= cluster.num_devices else None


def check_same_devices(given: Cluster, followed: Cluster) -> None:
    """Raise RhinoError unless the devices given are those of the step to follow, on which the state is."""
    if local_devices(given) != local_devices(followed):
        raise RhinoError(
            f"devices= gives {given.num_devices} devices, and the step to follow has its state on "
            f"{followed.num_devices} ({followed.name})"
            + (", which are others" if given.num_devices == followed.num_devices else ""),
            "leave devices= out: follow= says where to run",
        )


def shared_job(cluster: Cluster) -> Job | None:
    """The job whose processes plan and run together for this cluster; None where this process does so alone.

    Raises:
      RhinoError: the cluster is a part of the job's devices, or more than all of them.
    """
    job = current_job()
    if job is None or not is_here(cluster):
        return None
    have = len(_all_devices(cluster))
    if cluster.num_devices != have:
        raise RhinoError(
            f"cluster {cluster.name} has {cluster.num_devices} devices, and the {job.count} processes have {have}",
            "give a cluster of all the job's devices: cluster=None describes it",
        )
    return job


def _all_devices(cluster: Cluster) -> list[Any]:
    """The devices that jax has for the cluster, those of one host after another, and in a host those of one process."""
    devices = jax.devices("cpu") if cluster.device.xla_target == "cpu" else jax.devices()
    return sorted(devices, key=lambda device: (host_of(device), device.process_index, device.id))


def too_few(cluster: Cluster) -> RhinoError:
    """The error of compiling or running for a cluster of this process's kind that is larger than this process."""
    if cluster.device.xla_target == "cpu":
        have = len(jax.devices("cpu"))
        remedy = (
            f"set XLA_FLAGS=--xla_force_host_platform_device_count={cluster.num_devices} before the first use of jax"
        )
    else:
        have = len(jax.devices())
        remedy = "start jax.distributed on all hosts, or give a smaller cluster"
    return RhinoError(f"cluster {cluster.name} has {cluster.num_devices} devices, and jax has {have} here", remedy)
