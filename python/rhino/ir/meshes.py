"""The meshes of a module that are Rhino's: their names, the one that is given, and the cluster that it lies on.

Owns these names. Knows no plans.
"""

from __future__ import annotations

from jaxlib.mlir import ir

from rhino.dialect import sdy
from rhino.dialect.attributes import RhinoCluster
from rhino.ir.diagnostics import PassError
from rhino.ir.manual import MANUAL_MESH
from rhino.machine import Cluster

# The mesh of a plan, and its axis over the replicas of a stage.
MESH = "mesh"
REPLICA_AXIS = "replica"


def given_mesh(module: ir.Module) -> list[tuple[str, int]]:
    """The axes of the module's `@mesh`, empty if it has no mesh at all. Raises PassError for others."""
    # jax writes meshes without axes for callbacks and for "no mesh": they lay nothing out.
    # The mesh of manual computations becomes a part of the one that is planned.
    meshes = {name: axes for name, axes in sdy.mesh_axes(module).items() if axes and name != MANUAL_MESH}
    if not meshes:
        return []
    if len(meshes) > 1 or MESH not in meshes:
        names = ", ".join(f"@{name}" for name in meshes)
        raise PassError(module, f"module has meshes {names}, but one @{MESH} is planned", ["drop them or keep @mesh"])
    return meshes[MESH]


def put_away(module: ir.Module, mesh: str) -> None:
    """Drops the mesh of manual computations that were written over a plan's; what is left of it is over that, too."""
    if MANUAL_MESH not in sdy.mesh_axes(module):
        return
    for view in list(module.body.operations):
        if view.operation.name == "sdy.mesh" and view.operation.attributes["sym_name"].value == MANUAL_MESH:
            view.operation.erase()
    sdy.rename_mesh(module, MANUAL_MESH, mesh)


def attach_cluster(module: ir.Module, cluster: Cluster) -> None:
    """Writes `rhino.cluster`."""
    RhinoCluster.attach(
        module,
        {
            "name": cluster.name,
            "hosts": cluster.hosts,
            "devices_per_host": cluster.devices_per_host,
            "device": cluster.device.kind,
        },
    )
