"""A step's own mesh and annotations put aside as `@manual`, for a plan to take them in.

Owns the order of that, and which mesh is kept. What is kept of annotations is in `written`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy as sdy_dialect

from rhino.dialect import functions, sdy
from rhino.ir.annotations.forms import real_axes, run_alone, unify
from rhino.ir.annotations.refine import finest, recast, recast_annotations, refined
from rhino.ir.annotations.written import Given, Keeping, Real, rewrite, written
from rhino.ir.collectives import Axes
from rhino.ir.diagnostics import PassError, PassLog
from rhino.ir.manual import MANUAL_MESH, mesh_name, outermost
from rhino.sharding.meshes import axes_text


def adopt(
    module: ir.Module,
    log: PassLog,
    keep: bool = True,
    unfit: Callable[[Axes], tuple[str, str] | None] = lambda axes: None,
) -> None:
    """As rhino-adopt-mesh does.

    Args:
      unfit: why a plan cannot have the axes of a mesh; see `Keeping`.
    """
    meshes = sdy.mesh_axes(module)
    main = functions.find(module, "main")
    if MANUAL_MESH in meshes or main is None or not len(main.regions[0].blocks):
        return
    alone = run_alone(main, module)
    if not meshes:
        log.unchanged = not alone
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
