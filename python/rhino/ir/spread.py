"""A manual computation over a plan's mesh: its collectives in all copies of its own mesh, its body on smaller parts.

Owns that rewriting of the operation in place. What splits what is the plan's decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy as sdy_dialect
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect import functions, sdy
from rhino.dialect.constants import splat
from rhino.ir.collectives import KINDS, Axes, Placed, spread_groups
from rhino.ir.cut import cut
from rhino.ir.manual import MANUAL_MESH, NAME, around, manual_axes, mesh_name, outermost
from rhino.ir.meshes import put_away
from rhino.program.data import Dims, Manual, Op

PLACE = "stablehlo.partition_id"


def spread(op: ir.Operation, record: Op, own: Axes, name: str, mesh: Axes, factors: Sequence[tuple[str, ...]]) -> None:
    """Writes one over another mesh, which has the axes of its own next to each other.

    Args:
      record: the operation in the graph.
      own: the axes of its mesh.
      name, mesh: of the new one.
      factors: the axes that split each factor of its rule, outermost first.
    """
    manual, rule = record.manual, record.rule
    assert manual is not None and rule is not None
    placed = Placed.of(own, mesh)
    assert placed is not None, "the search looks at no other meshes"
    sizes = dict(mesh)
    split = {f: axes for f, axes in enumerate(factors) if axes}
    split.update({f: (axis,) for axis, f in manual.taken if f >= 0})
    ways = {f: prod(sizes[axis] for axis in split[f]) for f in manual.free if f in split}
    inner = list(functions.walk(op))
    own_name = mesh_name(op)
    for at in (op, *inner):
        sdy.rename_mesh_on(at, own_name, name)
    with op.context, op.location:
        _cut(op, manual, ways)
        shardings = [
            [sdy.tensor_sharding(op.context, name, _dims(mapping, split)) for mapping in side]
            for side in (rule.operands, rule.results)
        ]
        op.attributes["in_shardings"] = sdy.per_value(shardings[0], op.context)
        op.attributes["out_shardings"] = sdy.per_value(shardings[1], op.context)
        # XLA has nothing left to partition: inside of a computation that leaves axes to it, it gathers for collectives.
        nested = {axis for at in inner if at.name == NAME for axis in manual_axes(at)}
        taken = [ir.StringAttr.get(axis) for axis, _ in mesh if axis not in nested]
        op.attributes["manual_axes"] = sdy_dialect.ManualAxesAttr.get(taken)
        for at in inner:
            if at.name in KINDS:
                spread_groups(at, placed)
            elif at.name == PLACE:
                _place(at, name, mesh, placed)


def _dims(mapping: tuple[tuple[int, ...], ...], split: Mapping[int, tuple[str, ...]]) -> Dims:
    return tuple(tuple(axis for f in dim for axis in split.get(f, ())) for dim in mapping)


def _cut(op: ir.Operation, manual: Manual, ways: Mapping[int, int]) -> None:
    """Makes the body one of a device's part of its batches, by the number of parts of each."""
    for factor, parts in ways.items():
        with ir.InsertionPoint(op):
            before = op.clone()
        cut(before, op, manual, factor, parts)
        before.erase()


def _place(op: ir.Operation, name: str, mesh: Axes, placed: Placed) -> None:
    """A device's number in the mesh of the computation, from its number in the larger one.

    XLA knows the latter only where all axes are manual: beside a computation inside, it is asked for in one of its own.
    """
    kind = op.results[0].type
    seen = {axis for outer in around(op) for axis in manual_axes(outer)}
    rest = [axis for axis, _ in mesh if axis not in seen]
    with op.location, ir.InsertionPoint(op):
        if rest:
            whole = sdy.per_value([sdy.tensor_sharding(op.context, name, ())], op.context)
            none = sdy.per_value([], op.context)
            axes = sdy_dialect.ManualAxesAttr.get([ir.StringAttr.get(axis) for axis in rest])
            nested = sdy_dialect.ManualComputationOp([kind], [], none, whole, axes)
            block = nested.regions[0].blocks.append()
            with ir.InsertionPoint(block):
                sdy_dialect.ReturnOp([own_place(kind, placed)])
            made = nested.results[0]
        else:
            made = own_place(kind, placed)
    op.results[0].replace_all_uses_with(made)
    op.erase()


def own_place(kind: Any, placed: Placed) -> Any:
    found = stablehlo.PartitionIdOp().result
    if placed.inner > 1:
        found = stablehlo.DivOp(found, splat(kind, placed.inner)).result
    # Whatever axes are put in front later: those of a pipeline's replicas.
    return stablehlo.RemOp(found, splat(kind, placed.devices)).result


def widen(op: ir.Operation, own: Axes, mesh: Axes, alone: bool) -> None:
    """Writes one over a mesh with further axes around those of its own.

    Args:
      alone: whether it takes those axes too; else it is in a computation that does.
    """
    placed = Placed.of(own, mesh)
    assert placed is not None, "axes are added around those that are there"
    for at in functions.walk(op):
        if at.name in KINDS:
            spread_groups(at, placed)
    if alone:
        mine = set(manual_axes(op)) | {axis for axis, _ in mesh} - {axis for axis, _ in own}
        names = [ir.StringAttr.get(axis, op.context) for axis, _ in mesh if axis in mine]
        op.attributes["manual_axes"] = sdy_dialect.ManualAxesAttr.get(names, context=op.context)


def put_within(module: ir.Module, name: str, mesh: Axes) -> None:
    """Writes what is over the mesh of the step itself, `@manual`, over one that has its axes, and drops that mesh."""
    own = tuple(sdy.mesh_axes(module).get(MANUAL_MESH, ()))
    for function in functions.all_functions(module) if own else ():
        for op in outermost(function):
            widen(op, own, mesh, alone=True)
    put_away(module, name)
