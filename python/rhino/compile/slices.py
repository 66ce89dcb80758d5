"""Slices at places that only the run knows, made fit for XLA's simplifier once its partitioner has cut them again.

Owns the workaround for one fault of XLA (0.10.2): it makes one slice of a slice of a slice, and bounds the sum of both
starts where it has to bound each. A start that is out of range then reads or keeps other elements.
"""

from __future__ import annotations

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect.functions import walk


def bound_slices(root: ir.Operation) -> None:
    """Bounds the starts of slices that devices may cut again, and keeps a scatter apart from the part that it updates.

    Requires: what XLA is to constrain is constrained by `sdy.sharding_constraint`.
    """
    for op in walk(root):
        if op.name == "stablehlo.dynamic_slice":
            _bound(op)
        elif op.name == "stablehlo.scatter":
            _apart(op)


def _bound(op: ir.Operation) -> None:
    """A slice of one element, such as a loop over layers takes, nothing cuts again."""
    whole, part = op.operands[0].type.shape, op.results[0].type.shape
    for dim, (n, size) in enumerate(zip(whole, part, strict=True)):
        start = op.operands[1 + dim]
        if 1 < size < n and not _is_constant(start):
            with op.context, op.location, ir.InsertionPoint(op):
                low, high = (_scalar(start.type, value) for value in (0, n - size))
                op.operands[1 + dim] = stablehlo.ClampOp(low, start, high).result


def _is_constant(v: ir.Value) -> bool:
    return isinstance(v, ir.OpResult) and v.owner.operation.name == "stablehlo.constant"


def _scalar(kind: ir.Type, value: int) -> ir.Value:
    element = ir.RankedTensorType(kind).element_type
    return stablehlo.ConstantOp(ir.DenseElementsAttr.get_splat(kind, ir.IntegerAttr.get(element, value))).result


def _apart(op: ir.Operation) -> None:
    """A scatter of one window becomes an update of a slice, which keeps what is there where the window is elsewhere."""
    for i in range(len(op.results)):
        given = op.operands[i]
        if isinstance(given, ir.OpResult) and given.owner.operation.name == "sdy.sharding_constraint":
            with op.context, op.location, ir.InsertionPoint(op):
                op.operands[i] = stablehlo.OptimizationBarrierOp([given]).results[0]
