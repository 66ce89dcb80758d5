"""What users write about layouts, brought into few forms: constraints, shardings of @main's boundary, computations.

Owns rewriting the others into these: shardings and collectives of Shardy on operations, hints, computations over axes
of one device. Decides nothing about what is kept.
"""

from __future__ import annotations

from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy as sdy_dialect

from rhino.dialect import functions, sdy
from rhino.dialect.attributes import RhinoPlan
from rhino.dialect.constants import splat
from rhino.ir.collectives import KINDS, Axes, list_groups
from rhino.ir.manual import NAME, SIDES, around, manual_axes, mesh_name
from rhino.program.operations import CONSTRAINTS

# They change where a value is, and not what it is; by operation, the attribute that says where it is then.
_MOVES = {
    **dict.fromkeys(CONSTRAINTS, "sharding"),
    **dict.fromkeys(
        (
            "sdy.all_gather", "sdy.all_slice", "sdy.all_to_all", "sdy.all_reduce", "sdy.reduce_scatter",
            "sdy.collective_permute", "sdy.sharded_to_unreduced", "sdy.replicated_to_unreduced",
        ),
        "out_sharding",
    ),
}  # fmt: skip
# They tell Shardy's propagation how to go about its work.
_HINTS = ("sdy.propagation_barrier", "sdy.data_flow_edge", "sdy.func_data_flow_edge")
_PLACE = "stablehlo.partition_id"
_PERMUTE = "stablehlo.collective_permute"
_COUNTS = ("mhlo.num_partitions", "mhlo.num_replicas")


def real_axes(axes: Axes) -> tuple[tuple[str, int], ...]:
    """The axes of a mesh that split anything."""
    return tuple((name, size) for name, size in axes if size > 1)


def unify(function: ir.Operation, module: ir.Module, meshes: dict[str, Any]) -> None:
    """Leave only constraints and manual computations over axes of several devices in a function.

    In a module that has a plan, shardings of operations are the plan's, which is made anew: they go.
    """
    planned = RhinoPlan.name in module.operation.attributes
    computations = [
        (op, mesh) for op in functions.walk(function) if op.name == NAME if (mesh := meshes.get(mesh_name(op)))
    ]
    for op, mesh in computations:
        for inner in functions.walk(op):
            list_groups(inner, mesh)
    # jax asks for a device's number in a computation of nothing: that is asked in place.
    asking, rest = (
        [pair for pair in computations if not len(pair[0].operands)],
        [p for p in computations if len(p[0].operands)],
    )
    for op, _ in asking:
        _inline(op, op.regions[0].blocks[0])
    for op, mesh in rest:
        _computation(op, mesh)
    inside = {inner for op in functions.walk(function) if op.name == NAME for inner in functions.walk(op)}
    for op in list(functions.walk(function)):
        if op.name in _MOVES:
            if op in inside:  # hints on axes that a plan decides
                _skip(op)
            elif op.name != "sdy.sharding_constraint":
                _constrain(op.operands[0], op.results[0], op.attributes[_MOVES[op.name]], op)
                op.erase()
        elif op.name in _HINTS:
            _skip(op)
        elif op.name == "sdy.sharding_group":
            op.erase()
        elif op.name == "sdy.named_computation":
            _named(op, op in inside)
        elif sdy.SHARDING in op.attributes and not _is_placed(op, meshes):
            if not (planned or op in inside):
                for result, sharding in zip(op.results, sdy.results_of(op), strict=True):
                    if sharding is not None and _rank(result):
                        _constrain_after(result, sharding)
            del op.attributes[sdy.SHARDING]


def _is_placed(op: ir.Operation, meshes: dict[str, Any]) -> bool:
    """Whether an operation stands on one device, as jax's callbacks do."""
    first = next((s for s in sdy.results_of(op) if s is not None), None)
    if first is None:
        return False
    return meshes.get(sdy.mesh_of(first)) == []


def _rank(value: Any) -> int:
    return len(value.type.shape) if isinstance(value.type, ir.RankedTensorType) else 0


def _skip(op: ir.Operation) -> None:
    op.results[0].replace_all_uses_with(op.operands[0])
    op.erase()


def _constrain(value: Any, result: Any, sharding: ir.Attribute, at: ir.Operation) -> None:
    with at.location, ir.InsertionPoint(at):
        made = sdy_dialect.ShardingConstraintOp(value, sharding).result
    result.replace_all_uses_with(made)


def _constrain_after(value: Any, sharding: ir.Attribute) -> None:
    owner = value.owner
    with owner.location, ir.InsertionPoint.after(owner):
        made = sdy_dialect.ShardingConstraintOp(value, sharding)
    value.replace_all_uses_except(made.result, made.operation)


def _named(op: ir.Operation, inside: bool) -> None:
    """A named computation is what it does; its shardings hold for what goes in and comes out."""
    block = op.regions[0].blocks[0]
    for side, values in (("in_shardings", op.operands), ("out_shardings", op.results)):
        if inside or side not in op.attributes:
            continue
        shardings = sdy_dialect.TensorShardingPerValueAttr(op.attributes[side]).shardings
        for i, (value, sharding) in enumerate(zip(list(values), shardings, strict=True)):
            if not _rank(value):
                continue
            if side == "out_shardings":
                _constrain_after(value, sharding)
            else:
                with op.location, ir.InsertionPoint(op):
                    op.operands[i] = sdy_dialect.ShardingConstraintOp(value, sharding).result
    _inline(op, block)


def _inline(op: ir.Operation, block: Any) -> None:
    """A region that runs once, in place of its operation."""
    for argument, operand in zip(block.arguments, op.operands, strict=True):
        argument.replace_all_uses_with(operand)
    *body, end = [at.operation for at in block.operations]
    for at in body:
        at.move_before(op)
    for result, value in zip(op.results, end.operands, strict=True):
        result.replace_all_uses_with(value)
    op.erase()


def _computation(op: ir.Operation, mesh: Axes) -> None:
    """Takes out the axes of one device; a computation without any left is what it does."""
    sizes = dict(mesh)
    if not any(sizes[axis] > 1 for axis in manual_axes(op) if axis in sizes):
        alone = not real_axes(mesh)
        for inner in list(functions.walk(op)):
            if alone or NAME not in _names_around(inner, op):
                _on_one(inner)
        _inline(op, op.regions[0].blocks[0])
        return
    single = {axis for axis, size in mesh if size == 1}
    if not single:
        return
    taken = [ir.StringAttr.get(axis, op.context) for axis in manual_axes(op) if axis not in single]
    op.attributes["manual_axes"] = sdy_dialect.ManualAxesAttr.get(taken, context=op.context)
    for side in SIDES:
        given = sdy_dialect.TensorShardingPerValueAttr(op.attributes[side]).shardings
        op.attributes[side] = sdy.per_value([over(s, sdy.mesh_of(s), mesh) for s in given], op.context)


def run_alone(function: ir.Operation, module: ir.Module) -> bool:
    """Take the collectives out of a program lowered for one device: jax writes `shard_map` there as its body.

    Returns whether there were any.
    """
    attributes = module.operation.attributes
    if any(name not in attributes or ir.IntegerAttr(attributes[name]).value != 1 for name in _COUNTS):
        return False
    found = [op for op in functions.walk(function) if op.name in KINDS or op.name == _PLACE]
    alone = [op for op in found if not around(op)]
    for op in alone:
        _on_one(op)
    return bool(alone)


def _names_around(op: ir.Operation, stop: ir.Operation) -> list[str]:
    found = []
    at = op.parent
    while at is not None and at != stop:
        found.append(at.name)
        at = at.parent
    return found


def _on_one(op: ir.Operation) -> None:
    """A collective among one device gives what it takes; a permutation that sends nothing gives zeros."""
    if op.name == _PLACE:
        with op.context, op.location, ir.InsertionPoint(op):
            op.results[0].replace_all_uses_with(splat(op.results[0].type, 0))
        op.erase()
    elif op.name in KINDS:
        sends = op.name != _PERMUTE or len(ir.DenseIntElementsAttr(op.attributes["source_target_pairs"])) > 0
        for result, operand in zip(op.results, op.operands, strict=True):
            if sends:
                result.replace_all_uses_with(operand)
            else:
                with op.context, op.location, ir.InsertionPoint(op):
                    result.replace_all_uses_with(splat(result.type, 0))
        op.erase()


def over(sharding: ir.Attribute, name: str, mesh: Axes) -> ir.Attribute:
    """A sharding over a mesh of another name, without the axes of one device."""
    real = dict(real_axes(mesh))

    def kept(axes: tuple[str, ...]) -> list[str]:
        return [axis for axis in axes if axis.split(":")[0] in real]

    return sdy.tensor_sharding(
        sharding.context,
        name,
        [kept(axes) for axes in sdy.dims_of(sharding)],
        [not closed for closed in sdy.closed_dims(sharding)],
        kept(sdy.replicated_axes(sharding)),
    )
