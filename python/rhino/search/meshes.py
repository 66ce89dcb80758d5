"""Which shapes a mesh may have on a cluster.

Owns the shapes each level tries and the check of one the user gives.
"""

from __future__ import annotations

from math import prod

from rhino.cluster import Cluster
from rhino.errors import RhinoError

AXIS_NAMES = ("x", "y", "z")


def mesh_shapes(cluster: Cluster, level: str = "O1") -> list[tuple[int, ...]]:
    """The meshes of one or two axes to try, outermost axis first; at O1 only those whose inner axis stays in a host."""
    n = cluster.num_devices
    if level == "O2":
        return [(n,), *((a, n // a) for a in range(2, n) if n % a == 0)]
    inner = [b for b in range(2, cluster.devices_per_host + 1) if n % b == 0 and cluster.devices_per_host % b == 0]
    return [(n,), *[(n // b, b) for b in inner if n // b > 1]]


def three_axes(n: int) -> list[tuple[int, ...]]:
    """Every mesh of n devices with three axes of two devices or more."""
    return [(a, b, n // a // b) for a in range(2, n) if n % a == 0 for b in range(2, n // a) if n // a % b == 0]


def checked_mesh(mesh: tuple[int, ...], cluster: Cluster) -> tuple[int, ...]:
    """The mesh itself. Raises RhinoError if it has not 1 to 3 axes, or another number of devices than the cluster."""
    text = "x".join(map(str, mesh))
    if not 1 <= len(mesh) <= len(AXIS_NAMES):
        raise RhinoError(f"mesh {text} has {len(mesh)} axes", f"give 1 to {len(AXIS_NAMES)}")
    if any(n < 1 for n in mesh):
        raise RhinoError(f"mesh {text} has an axis of {min(mesh)} devices", "give sizes of 1 or more")
    if prod(mesh) != cluster.num_devices:
        raise RhinoError(
            f"mesh {text} has {prod(mesh)} devices but cluster {cluster.name} has {cluster.num_devices}",
            "give sizes whose product is the number of devices",
        )
    return mesh
