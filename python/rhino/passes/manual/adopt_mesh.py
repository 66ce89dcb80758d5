"""The pass rhino-adopt-mesh: a step's own mesh and annotations stand aside, for a plan to take them in."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, ClassVar

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy as sdy_dialect

from rhino.dialect import functions, sdy
from rhino.ir.annotations.forms import real_axes, run_alone, unify
from rhino.ir.annotations.refine import finest, recast, recast_annotations, refined
from rhino.ir.annotations.written import Given, Keeping, Real, rewrite, written
from rhino.ir.collectives import Axes
from rhino.ir.diagnostics import PassError, PassLog
from rhino.ir.manual import MANUAL_MESH, mesh_name, outermost
from rhino.machine import Cluster
from rhino.passes.registry import Pass, option, register
from rhino.sharding.meshes import axes_text, read_mesh

_IGNORE = "give annotations=ignore, and the plan is free"


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


def place_in(
    cluster: Cluster | None, sizes: tuple[int, ...] = (), stages: int = 0
) -> Callable[[Axes], tuple[str, str] | None]:
    """Says why a cluster, cut into stages, or a mesh of given sizes has no place for a mesh; see `Keeping.unfit`."""

    def unfit(axes: Axes) -> tuple[str, str] | None:
        needs, text = prod(size for _, size in axes), axes_text(tuple(axes))
        if cluster is None:
            return None
        devices = cluster.num_devices
        if stages > 1 and not sizes and (devices // stages) % needs:
            why = f"over a mesh {text}, and each of {stages} stages has {devices // stages} devices"
            return why, "write it for a mesh that a stage has room for, or plan without stages"
        if devices % needs:
            why = f"over a mesh {text} of {needs} devices, which do not divide the {devices} of cluster {cluster.name}"
            return why, f"write it for a mesh whose size divides the number of devices, or {_IGNORE[5:]}"
        wanted = [size for _, size in axes]
        places = (list(sizes[i : i + len(wanted)]) == wanted for i in range(len(sizes)))
        if sizes and not any(places):
            why = f"over a mesh {text}, for which the mesh {'x'.join(map(str, sizes))} has no place"
            return why, "ask for a mesh with these sizes next to each other, or for none"
        return None

    return unfit


def adopt(
    module: ir.Module,
    log: PassLog,
    keep: bool = True,
    unfit: Callable[[Axes], tuple[str, str] | None] = lambda axes: None,
) -> None:
    """As the pass does.

    Args:
      unfit: why a plan cannot have the axes of a mesh; see `Keeping`.
    """
    meshes = sdy.mesh_axes(module)
    main = functions.find(module, "main")
    if MANUAL_MESH in meshes or main is None or not len(main.regions[0].blocks):
        return
    run_alone(main, module)
    if not meshes:
        return
    unify(main, module, meshes)
    own = _own_mesh(main, module, meshes)
    found = written(main)
    kept: dict[int, ir.Attribute] = {}
    keeping = Keeping(module, meshes, log, unfit)
    if not keep:
        _say_ignored(found, meshes, log)
    else:
        axes, those = keeping.choose(found, own)
        number = {id(given): i for i, given in enumerate(found)}
        for given in those:
            sharding = keeping.sharding(given, axes)
            if sharding is not None:
                kept[number[id(given)]] = sharding
        own = axes if kept else own
        _say_order(those, module, log)
    rewrite(main, found, kept)
    _replace_meshes(module, main, meshes, own)
    if own:
        log.count("adopted")


def _own_mesh(main: ir.Operation, module: ir.Module, meshes: dict[str, Any]) -> Real:
    """The mesh of the manual computations, over which all of them are then; empty without any.

    Raises:
      PassError: no mesh of theirs refines the others, or one lists its devices in an order of its own.
    """
    computations = outermost(main)
    used: dict[str, ir.Operation] = {}
    for op in computations:
        if real_axes(meshes.get(mesh_name(op)) or ()):
            used.setdefault(mesh_name(op), op)
    for name, op in used.items():
        if len(_listed_devices(module, name)):
            raise PassError(
                op,
                f"mesh @{name} lists its devices in an order of its own",
                ["build the mesh with the devices in jax's order, or use jax.sharding.AbstractMesh"],
            )
    own = finest([real_axes(meshes[name]) for name in used]) if used else ()
    if own is None:
        raise _unlike([(op, real_axes(meshes[name])) for name, op in used.items()])
    name = next((name for name in used if real_axes(meshes[name]) == own), "")
    for old in used:
        to = refined(real_axes(meshes[old]), own)
        if to is None or real_axes(meshes[old]) == own:
            continue
        for op in computations:
            if mesh_name(op) == old:
                recast(op, name, to)
        recast_annotations(main, old, name, to)
    return tuple(own)


def _unlike(used: list[tuple[ir.Operation, Real]]) -> PassError:
    """Of meshes none of which refines all others, two neither of which refines the other."""
    (first, one), (op, other) = next(
        (a, b)
        for k, b in enumerate(used)
        for a in used[:k]
        if (refined(a[1], b[1]) is None and refined(b[1], a[1]) is None) or k == len(used) - 1
    )
    message = (
        f"the manual computation is over a mesh {axes_text(other)}, another one over {axes_text(one)}, and the axes of "
        "neither are made of the other's"
    )
    return PassError(op, message, ["write both for one mesh that has all axes", (first, "the other one is here")])


def _replace_meshes(module: ir.Module, main: ir.Operation, meshes: dict[str, Any], own: Axes) -> None:
    """`@manual` in place of all meshes that have axes."""
    for op in outermost(main):
        if name := mesh_name(op):
            for inner in (op, *functions.walk(op)):
                sdy.rename_mesh_on(inner, name, MANUAL_MESH)
    for view in list(module.body.operations):
        if view.operation.name == "sdy.mesh" and meshes[view.operation.attributes["sym_name"].value]:
            view.operation.erase()
    if own:
        sdy.add_mesh(module, MANUAL_MESH, own)


def _say_ignored(found: list[Given], meshes: dict[str, Any], log: PassLog) -> None:
    real = [given for given in found if real_axes(meshes.get(given.mesh) or ())]
    if real:
        more = f", and {len(real) - 1} more like it" if len(real) > 1 else ""
        log.remark(real[0].location, f"{real[0].name} is ignored{more}, as asked")


def _say_order(kept: list[Given], module: ir.Module, log: PassLog) -> None:
    for given in kept:
        if len(_listed_devices(module, given.mesh)):
            why = f"mesh @{given.mesh} lists its devices in an order of its own, and a plan has them in jax's"
            log.warning(given.location, why, ["the axes are kept; only which devices are neighbours may differ"])
            return


def _listed_devices(module: ir.Module, name: str) -> list[int]:
    """The devices of a mesh where they are not simply numbered."""
    for view in module.body.operations:
        op = view.operation
        if op.name == "sdy.mesh" and op.attributes["sym_name"].value == name:
            return list(sdy_dialect.MeshAttr(op.attributes["mesh"]).device_ids)
    return []
