"""Reductions made, and rewritten so that they can be done in parts.

Owns where they start. What is read of a reduction is in `reducers`.
"""

from __future__ import annotations

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from rhino.dialect.constants import has_identity, identity, splat
from rhino.dialect.functions import walk
from rhino.dialect.reducers import combiners_of, starts, starts_neutral
from rhino.dialect.sdy import SHARDING

APPLY = {
    "add": stablehlo.AddOp, "multiply": stablehlo.MulOp, "maximum": stablehlo.MaxOp, "minimum": stablehlo.MinOp,
    "and": stablehlo.AndOp, "or": stablehlo.OrOp, "xor": stablehlo.XorOp,
}  # fmt: skip
# XLA: start-counts-on-each-device. Not of a scatter, which starts from a tensor that one device has: the others start
# from what changes nothing.
_FROM_SCALARS = ("stablehlo.reduce", "stablehlo.reduce_window", "stablehlo.select_and_scatter")


def together(parts: ir.Value, kind: str = "add", dims: int = 1) -> ir.Value:
    """The parts along the first dimensions of a value put together by `kind`, at the current insertion point."""
    element = parts.type.element_type
    scalar, whole = (ir.RankedTensorType.get(shape, element) for shape in ([], list(parts.type.shape)[dims:]))
    start = splat(scalar, identity(kind, element))
    reduced = stablehlo.ReduceOp([whole], [parts], [start], ir.DenseI64ArrayAttr.get(range(dims)))
    block = reduced.regions[0].blocks.append(scalar, scalar)
    with ir.InsertionPoint(block):
        stablehlo.ReturnOp([APPLY[kind](*block.arguments).result])
    return reduced.result


def start_neutral(root: ir.Operation) -> int:
    """Lets reductions below an operation start from what changes nothing, and be combined with their start afterwards.

    `XLA: start-counts-on-each-device`, and in a reduction of joined tensors for each of them; where a part is a single
    row, the start is left out. Padding counts as nothing, as
    in XLA (in StableHLO's text it is the start). Returns how many operations it changed.
    """
    return sum(start_apart(op) for op in [op for op in walk(root) if op.name in _FROM_SCALARS])


def start_apart(op: ir.Operation) -> bool:
    """As `start_neutral` for one operation, a scatter too. Whether that changed it."""
    given = [
        (i, kind)
        for i, (kind, result) in enumerate(zip(combiners_of(op), op.results, strict=True))
        if not starts_neutral(op, i, kind)
        and has_identity(kind, op.operands[starts(op)[i]].type.element_type)
        and result.type.has_static_shape  # the importer refuses others
    ]
    for i, kind in given:
        _start_after(op, i, kind)
    return bool(given)


def _start_after(op: ir.Operation, i: int, kind: str) -> None:
    result, at = op.results[i], starts(op)[i]
    start = op.operands[at]
    with op.context, op.location:
        with ir.InsertionPoint(op):
            op.operands[at] = splat(start.type, identity(kind, start.type.element_type))
        with ir.InsertionPoint.after(op):
            everywhere, element = start, result.type.element_type
            if start.type.element_type != element:  # the reducer may work in a wider type
                wide = ir.RankedTensorType.get(start.type.shape, element)
                everywhere = stablehlo.ConvertOp(wide, start).result
            if start.type.shape != result.type.shape:
                everywhere = stablehlo.BroadcastInDimOp(result.type, everywhere, ir.DenseI64ArrayAttr.get([])).result
            whole = APPLY[kind](everywhere, result)
            if SHARDING in op.attributes:
                given = sdy.TensorShardingPerValueAttr(op.attributes[SHARDING]).shardings[i]
                whole.attributes[SHARDING] = sdy.TensorShardingPerValueAttr.get([given])
    result.replace_all_uses_except(whole.result, [whole.operation])
