"""The pass rhino-adopt-mesh: a step's own mesh and annotations stand aside, for a plan to take them in."""

from __future__ import annotations

from typing import ClassVar

from jaxlib.mlir import ir

from rhino.ir.annotations.adopt import adopt
from rhino.ir.diagnostics import PassLog
from rhino.machine import Cluster
from rhino.passes.registry import Pass, option, register
from rhino.sharding.meshes import place_in, read_mesh


@register
class AdoptMesh(Pass):
    """Put aside, as `@manual`, the mesh that a step has of its own, with the annotations over it.

    A plan is over a mesh of the cluster's devices. It has the axes of this one, next to each other and in their order,
    and others beside them where the cluster is larger. rhino-plan-sharding keeps what is annotated on these axes, and
    writes manual computations (jax's `shard_map`) over the planned mesh.

    What splits nothing is taken out: collectives in a program for one device, axes of one device, meshes without
    others, all annotations where none names an axis. Shardings on operations and on results, and Shardy's collectives,
    become constraints; its hints to propagation (barriers, groups) are dropped. Of several meshes the one of the manual
    computations is kept, else the one with most annotations, and those whose axes it has. Of several meshes of manual
    computations the finest is kept: axes of the others must each be one of its axes or several that follow each other.

    Requires: calls are inlined.

    Ensures: everything that is annotated in @main is over the mesh `@manual`, and can be kept by a plan; what cannot is
    dropped with a warning at its place. A module that has `@manual` already, or no mesh, is left as it is.

    Options:
      annotations: `ignore` drops all annotations, which leaves manual computations alone.
      topology, mesh, stages: as of rhino-auto; where given, a mesh that has no place there is dropped.

    Example:
      ```mlir
      // rhino-opt --rhino-adopt-mesh
      sdy.mesh @mesh = <["data"=1, "sp"=4]>
      %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"sp"}]>] ..
      %1 = sdy.sharding_constraint %0 <@mesh, [{"data", "sp"}]> : tensor<8xf32>
      // becomes
      sdy.mesh @manual = <["sp"=4]>
      %0 = sdy.manual_computation(%x) in_shardings=[<@manual, [{"sp"}]>] ..
      %1 = sdy.sharding_constraint %0 <@manual, [{"sp"}]> : tensor<8xf32>
      ```
    """

    name: ClassVar[str] = "rhino-adopt-mesh"

    annotations: str = option("keep", "what becomes of the annotations of a step", ("keep", "ignore"))
    topology: str = option("", "cluster that will be planned for, where known: preset[:hosts], a YAML file, or `local`")
    mesh: str = option("", "sizes of the planned mesh, where known, as in 2x4")
    stages: int = option(0, "number of pipeline stages, where known")

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Rewrite. Raises PassError at a manual computation over a mesh that has no place in the others'."""
        cluster = Cluster.load(self.topology) if self.topology else log.session.cluster
        sizes, _ = read_mesh(self.mesh)
        adopt(module, log, self.annotations == "keep", place_in(cluster, sizes, self.stages))
