"""Values that are laid out otherwise for some reader, kept apart from what else reads them.

Owns the workaround for a fault of XLA: `XLA: moved-axes-gathered`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from rhino.dialect.sdy import dims_of, results_of


def keep_sources_apart(module: ir.Module, boundary: Mapping[ir.Value, Any]) -> None:
    """Puts a constraint to the layout that there is in front of those that bring an axis to another dimension.

    Where it has no other reader a value is its own already.

    Args:
      boundary: the shardings of arguments; other values are laid out as their operation says.
    """
    moved: list[tuple[ir.Operation, Any]] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "sdy.sharding_constraint":
            source = layout_of(op.operands[0], boundary)
            if source is not None and _moves(source, op.attributes["sharding"]):
                moved.append((op, source))
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for op, source in moved:
        value = op.operands[0]
        if len(list(value.uses)) > 1:
            own = sdy.ShardingConstraintOp(
                value, sdy.TensorShardingAttr(source), loc=op.location, ip=ir.InsertionPoint(op)
            )
            op.operands[0] = own.result


def layout_of(value: ir.Value, boundary: Mapping[ir.Value, Any]) -> Any:
    """The sharding of a value; None where nothing says it."""
    if isinstance(value.owner, ir.Block):
        return boundary.get(value)
    owner = value.owner.operation
    if owner.name == "sdy.sharding_constraint":
        return owner.attributes["sharding"]
    return results_of(owner)[ir.OpResult(value).result_number]


def _moves(source: ir.Attribute, target: ir.Attribute) -> bool:
    """Whether an axis, or a part of one, is on another dimension afterwards."""
    before, after = (
        {axis.split(":")[0]: d for d, axes in enumerate(dims_of(sharding)) for axis in axes}
        for sharding in (source, target)
    )
    return any(before[name] != d for name, d in after.items() if name in before)
