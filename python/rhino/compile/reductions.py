"""Reductions made fit for XLA's partitioner, whoever split their operands: a plan, propagation or the user.

Owns the constraints on what no devices may share. What they can is in `rhino.program.partial`.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from rhino.dialect.functions import walk
from rhino.dialect.reducers import combiners_of
from rhino.dialect.reductions import start_neutral
from rhino.ir.rules import in_parts

# XLA: other-reducers-refused. A window over a whole dimension becomes a reduction; what other scatters combine is
# gathered.
_ACROSS = ("stablehlo.reduce", "stablehlo.reduce_window", "stablehlo.dot_general")


def share_reductions(root: ir.Operation, mesh: str) -> None:
    """Lets reductions that devices share start once, and constrains those that they cannot share.

    No axis of the mesh splits the dimensions that such a one reduces: XLA would end the process, refuse, or compute
    something else.
    """
    start_neutral(root)
    for op in [op for op in walk(root) if op.name in _ACROSS]:
        if not in_parts(op):
            _keep_whole(op, mesh)


def _keep_whole(op: ir.Operation, mesh: str) -> None:
    # Apart from what joins an operand's parts, each of which would begin anew. XLA: start-counts-on-each-device
    apart = op.name != "stablehlo.dot_general" and "" in combiners_of(op)
    with op.context, op.location, ir.InsertionPoint(op):
        for i, reduced in enumerate(_reduced(op)):
            rank = len(op.operands[i].type.shape)
            dims = [sdy.DimensionShardingAttr.get([], is_closed=d in reduced) for d in range(rank)]
            sharding = sdy.TensorShardingAttr.get(ir.FlatSymbolRefAttr.get(mesh), dims)
            whole = sdy.ShardingConstraintOp(op.operands[i], sharding).result
            op.operands[i] = stablehlo.OptimizationBarrierOp([whole]).results[0] if apart else whole


def _reduced(op: ir.Operation) -> Sequence[Sequence[int]]:
    """Per operand the dimensions that are reduced."""
    if op.name == "stablehlo.dot_general":
        numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
        return numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions
    if op.name == "stablehlo.reduce":
        reduced = list(ir.DenseI64ArrayAttr(op.attributes["dimensions"]))
    else:
        shapes = zip(op.operands[0].type.shape, op.results[0].type.shape, strict=True)
        reduced = [d for d, (size, left) in enumerate(shapes) if left == 1 < size]
    return [reduced] * len(op.results)
