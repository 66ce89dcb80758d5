"""Slices at places that only the run knows, made fit for XLA's simplifier once its partitioner has cut them again.

Owns the workaround for faults of XLA: `XLA: slices-of-slices-merge, update-starts-in-32-bits,
updates-beyond-the-end-lost, scatters-of-one-window-misread`. Windows of a gather become slices, one by one.
"""

from __future__ import annotations

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.compile.ranges import range_of
from rhino.dialect.functions import walk


def bound_slices(root: ir.Operation) -> None:
    """Bounds starts: of slices and windows that devices may cut again, of updates out of range. Keeps scatters apart.

    Requires: what XLA is to constrain is constrained by `sdy.sharding_constraint`.
    """
    for op in walk(root):
        if op.name == "stablehlo.dynamic_slice":
            _bound(op, 1, op.results[0])
        elif op.name == "stablehlo.dynamic_update_slice":
            _bound(op, 2, op.operands[1])
        elif op.name == "stablehlo.gather":
            _bound_windows(op)
        elif op.name == "stablehlo.scatter":
            _apart(op)


def _bound(op: ir.Operation, first: int, part: ir.Value) -> None:
    """Bounds the starts, from operand `first` on. Slices of one, as loops over layers take, nothing cuts again.

    An update of one beyond the end is lost where its dimension is split.
    """
    for dim, (n, size) in enumerate(zip(op.operands[0].type.shape, part.type.shape, strict=True)):
        start = op.operands[first + dim]
        needed = 1 < size < n or (first == 2 and size < n)
        if needed and not _is_within(start, n - size):
            with op.context, op.location, ir.InsertionPoint(op):
                low, high = (_scalar(start.type, value) for value in (0, n - size))
                op.operands[first + dim] = stablehlo.ClampOp(low, start, high).result


def _bound_windows(op: ir.Operation) -> None:
    """Bounds where a gather's windows begin: one window, of the program or of a device, becomes a slice for XLA."""
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    sizes = list(op.attributes["slice_sizes"])
    shape, starts = op.operands[0].type.shape, op.operands[1]
    if not any(1 < sizes[dim] < shape[dim] for dim in numbers.start_index_map):
        return
    element = ir.IntegerType(ir.RankedTensorType(starts.type).element_type)
    # A type that cannot say the last place cannot go beyond it.
    most = 2 ** (element.width if element.is_unsigned else element.width - 1) - 1
    last = [min(shape[dim] - sizes[dim], most) for dim in numbers.start_index_map]
    with op.context, op.location, ir.InsertionPoint(op):
        low, high = (_along(starts.type, numbers.index_vector_dim, row) for row in ([0] * len(last), last))
        op.operands[1] = stablehlo.ClampOp(low, starts, high).result


def _along(kind: ir.Type, dim: int, row: list[int]) -> ir.Value:
    """A tensor with these numbers along a dimension, the same everywhere else; without that dimension, of the one."""
    tensor = ir.RankedTensorType(kind)
    dims = [dim] if dim < len(tensor.shape) else []
    text = f"dense<{row if dims else row[0]}> : {ir.RankedTensorType.get([len(row)] * len(dims), tensor.element_type)}"
    constant = stablehlo.ConstantOp(ir.DenseElementsAttr(ir.Attribute.parse(text))).result
    return stablehlo.BroadcastInDimOp(tensor, constant, ir.DenseI64ArrayAttr.get(dims)).result


def _is_within(start: ir.Value, last: int) -> bool:
    """Whether a start is known to be in range, as those are that a loop over layers counts."""
    found = range_of(start)
    return found is not None and found[0] >= 0 and found[1] <= last


def _scalar(kind: ir.Type, value: int) -> ir.Value:
    element = ir.RankedTensorType(kind).element_type
    return stablehlo.ConstantOp(ir.DenseElementsAttr.get_splat(kind, ir.IntegerAttr.get(element, value))).result


def _apart(op: ir.Operation) -> None:
    """Keeps what a scatter of one window changes apart from what has another layout, and from constants.

    `XLA: scatters-of-one-window-misread`.
    """
    for i in range(len(op.results)):
        given = op.operands[i]
        if isinstance(given, ir.OpResult) and _is_seen_through(given.owner.operation):
            with op.context, op.location, ir.InsertionPoint(op):
                op.operands[i] = stablehlo.OptimizationBarrierOp([given]).results[0]


def _is_seen_through(op: ir.Operation) -> bool:
    if op.name == "stablehlo.constant":
        return not ir.DenseElementsAttr(op.attributes["value"]).is_splat
    return op.name == "sdy.sharding_constraint"
