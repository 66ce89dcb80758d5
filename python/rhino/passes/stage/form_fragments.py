"""The pass rhino-form-fragments: from stages on operations to one program per stage, and the transfers between them."""

from __future__ import annotations

from math import prod
from typing import ClassVar

from jaxlib.mlir import ir

from rhino.dialect import sdy
from rhino.dialect.attributes import RhinoCluster
from rhino.errors import RhinoError
from rhino.ir.diagnostics import PassError, PassLog
from rhino.ir.fragments.build import build_fragments
from rhino.ir.fragments.layouts import Meshes
from rhino.ir.fragments.plan import plan_fragments
from rhino.ir.meshes import MESH, attach_cluster, given_mesh
from rhino.ir.pipeline.program import read_program
from rhino.passes.entry import main_function, require_static_shapes, topology_cluster
from rhino.passes.registry import Pass, option, register
from rhino.pipeline.program.program import Transfer


@register
class FormFragments(Pass):
    """Cut @main into mpmd fragments, one program per stage and part of the step, with transfers between stages.

    The loop over micro-batches becomes an `mpmd.for` that calls @microbatch, with a forward and a backward fragment per
    stage; what is before and after it becomes `prepare` and `update` fragments. Those have levels: an operation that
    needs a value of another stage is in a fragment one level above the one that makes it, so no two fragments wait for
    each other. Operations without a stage, and constraints on sharding, go into every fragment that reads them. A value
    is sent once to each stage that reads it. Each argument is where it is read: an argument that a result takes the
    buffer of, a parameter or state of the optimizer on one stage, others on all. What has `rhino.pin` is where that
    says. An argument read in rows by static slices along one dimension (layers stacked for a scan) becomes one argument
    per slice, and a result put together from rows one per row.

    Requires:
      The loop of rhino-split-microbatch and the stages of rhino-plan-stages; calls inlined; at most one mesh, @mesh,
      but for those that the option names: then `sdy.sharding` is over the mesh of an operation's stage, and
      `rhino.layouts` says how its results are split on the others.

    Ensures:
      @main and @microbatch hold only fragments, transfers and the loop. Group g of stages is mesh `stageg`, on the
      devices that `rhino.placement` names; stage s is on group s mod `groups`. Arguments and results say with
      `rhino.argument` which original ones they are. `tf.aliasing_output` still pairs an argument with a result of its
      type. What a loop carries is made, updated and returned on one stage.

    Options:
      split-backward: whether what no other stage waits for gets a fragment of its own, `weight`, to run later.
      groups: number of device groups that the stages share; 0 gives every stage its own.
      meshes: the meshes of the groups, in order, where stages have different numbers of devices.
      topology: the cluster that all groups lie on; by default the one the module names, if any. rhino-plan-sharding was
        given the part of one group.

    Example:
      ```mlir
      %h = stablehlo.tanh %x {rhino.stage = {phase = "forward", stage = 0 : i64}} : tensor<4xf32>
      %y = stablehlo.exponential %h {rhino.stage = {phase = "forward", stage = 1 : i64}} : tensor<4xf32>
      // becomes, in @microbatch
      %0 = mpmd.fragment<mesh="stage0", origin=["forward"], stage=0> (%x) (%a: tensor<4xf32>) {..}
      %1 = mpmd.transfer %0 : (!s0) -> !s1
      %2 = mpmd.fragment<mesh="stage1", origin=["forward"], stage=1> (%1) (%b: tensor<4xf32>) {..}
      ```
    """

    name: ClassVar[str] = "rhino-form-fragments"

    split_backward: bool = option(False, "put what no other stage waits for into fragments of their own")
    groups: int = option(0, "number of device groups that the stages share; 0 gives every stage its own")
    meshes: tuple[str, ...] = option((), "the mesh of each group, where they differ; by default all have @mesh")
    topology: str = option("", "cluster all groups lie on: preset[:hosts], a YAML file, or `local`")

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Replace @main. Raises PassError at an operation that breaks a rule of the stages."""
        if self.groups < 0:
            raise RhinoError(f"'{self.name}': groups is {self.groups} but must be at least 0")
        cluster = topology_cluster(self.topology, log, self.name) if self.topology else None
        main = main_function(module, self.name)
        require_static_shapes(main, self.name)
        meshes = self._meshes(module)
        plan = plan_fragments(main, self.groups, self.split_backward, meshes)
        if len(meshes.names) not in (1, plan.groups):
            message = f"'{self.name}': {len(meshes.names)} meshes for {plan.groups} groups of devices"
            raise PassError(main, message, ["name the mesh of each group, or give none for @mesh"])
        if cluster is not None:
            attach_cluster(module, cluster)
        self._check_devices(module, sum(prod(n for _, n in meshes.axes_of(g)) for g in range(plan.groups)))
        build_fragments(module, plan)
        program = read_program(module)
        log.count("fragments", len(program.fragments))
        log.count("transfers", len(program.transfers))
        for times, part in ((1, program.before), (program.microbatches, program.body), (1, program.after)):
            sent = [program.values[op.source].nbytes for op in part if isinstance(op, Transfer)]
            log.count("transferred-bytes", times * sum(sent))

    def _meshes(self, module: ir.Module) -> Meshes:
        if not self.meshes:
            return Meshes((MESH,), {MESH: given_mesh(module)})
        known = sdy.mesh_axes(module)
        for name in self.meshes:
            if name not in known:
                there = ", ".join(f"@{n}" for n in known) or "none"
                raise PassError(module, f"the module has no mesh @{name}", [f"it has {there}"])
        return Meshes(self.meshes, {name: known[name] for name in self.meshes})

    def _check_devices(self, module: ir.Module, wanted: int) -> None:
        cluster = RhinoCluster.of(module)
        have = wanted if cluster is None else cluster["hosts"] * cluster["devices_per_host"]
        if cluster is not None and wanted > have:
            message = f"the stages need {wanted} devices, but the cluster '{cluster['name']}' has {have}"
            raise PassError(module, message, ["plan fewer stages, let them share groups, or give a smaller mesh"])
