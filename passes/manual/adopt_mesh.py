"""The pass rhino-adopt-mesh: the mesh of a step's own manual computations stands aside, for a plan to take it in."""

from __future__ import annotations

from typing import ClassVar

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy as sdy_dialect

from rhino.dialect import functions, sdy
from rhino.passes.diagnostics import PassError, PassLog
from rhino.passes.manual.collectives import Axes, list_groups
from rhino.passes.manual.read import NAME, mesh_name, outermost
from rhino.passes.registry import Pass, register
from rhino.search.meshes import axes_text

MANUAL_MESH = "manual"


@register
class AdoptMesh(Pass):
    """Put aside, as `@manual`, the mesh of the manual computations that a step has (jax's `shard_map`).

    A plan is over a mesh of the cluster's devices. It has the axes of this one, next to each other and in their order,
    and others beside them where the cluster is larger. rhino-plan-sharding writes the manual computations over it.

    Requires: nothing.

    Ensures: all manual computations of the module, and the shardings given beside them, are over the mesh `@manual`.
    A module without any is left as it is.

    Example:
      ```mlir
      // rhino-opt --rhino-adopt-mesh
      sdy.mesh @mesh = <["sp"=4]>
      %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"sp"}]>] ..
      // becomes
      sdy.mesh @manual = <["sp"=4]>
      %0 = sdy.manual_computation(%x) in_shardings=[<@manual, [{"sp"}]>] ..
      ```
    """

    name: ClassVar[str] = "rhino-adopt-mesh"

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Rename. Raises PassError at a manual computation over another mesh than the first."""
        if adopt(module):
            log.count("adopted")


def adopt(module: ir.Module) -> bool:
    """As the pass does; whether there was something to do."""
    meshes = sdy.mesh_axes(module)
    used: dict[str, ir.Operation] = {}
    for function in functions.all_functions(module):
        for op in outermost(function):
            if meshes.get(mesh_name(op)):
                used.setdefault(mesh_name(op), op)
                _unfold(op, meshes[mesh_name(op)])
    if not used or list(used) == [MANUAL_MESH]:
        return False
    first = next(iter(used))
    for name, op in used.items():
        if meshes[name] != meshes[first]:
            raise PassError(
                op,
                f"the manual computation is over a mesh {axes_text(tuple(meshes[name]))}, another one over "
                f"{axes_text(tuple(meshes[first]))}",
                ["write both for one mesh that has all axes"],
            )
        if len(_listed_devices(module, name)):
            raise PassError(
                op,
                f"mesh @{name} lists its devices in an order of its own",
                ["build the mesh with the devices in jax's order, or use jax.sharding.AbstractMesh"],
            )
    # jax may write the same mesh twice.
    same = [name for name, axes in meshes.items() if axes == meshes[first]]
    for view in list(module.body.operations):
        if view.operation.name == "sdy.mesh" and view.operation.attributes["sym_name"].value in same:
            view.operation.erase()
    sdy.add_mesh(module, MANUAL_MESH, meshes[first])
    for name in same:
        if name != MANUAL_MESH:
            sdy.rename_mesh(module, name, MANUAL_MESH)
    return True


def _unfold(op: ir.Operation, mesh: Axes) -> None:
    """Takes out of a body what is written where axes are left to XLA, and lists the devices of its collectives.

    jax asks there for a device's number in a computation of nothing. Constraints are hints on axes that a plan decides.
    """
    for inner in list(functions.walk(op)):
        list_groups(inner, mesh)
        if inner.name == NAME and not len(inner.operands):
            *ops, returned = [at.operation for at in inner.regions[0].blocks[0].operations]
            for at in ops:
                at.move_before(inner)
            for result, value in zip(inner.results, returned.operands, strict=True):
                result.replace_all_uses_with(value)
            inner.erase()
        elif inner.name == "sdy.sharding_constraint":
            inner.results[0].replace_all_uses_with(inner.operands[0])
            inner.erase()


def _listed_devices(module: ir.Module, name: str) -> list[int]:
    """The devices of a mesh where they are not simply numbered."""
    for view in module.body.operations:
        op = view.operation
        if op.name == "sdy.mesh" and op.attributes["sym_name"].value == name:
            return list(sdy_dialect.MeshAttr(op.attributes["mesh"]).device_ids)
    return []


def put_away(module: ir.Module, mesh: str) -> None:
    """Drops the mesh of manual computations that were written over a plan's; what is left of it is over that, too."""
    if MANUAL_MESH not in sdy.mesh_axes(module):
        return
    for view in list(module.body.operations):
        if view.operation.name == "sdy.mesh" and view.operation.attributes["sym_name"].value == MANUAL_MESH:
            view.operation.erase()
    sdy.rename_mesh(module, MANUAL_MESH, mesh)
