"""Reductions made fit for XLA's partitioner, whoever split their operands: a plan, propagation or the user.

Owns what no device may share. What devices can combine is in `rhino.graph.partial`.
"""

from __future__ import annotations

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from rhino.dialect.functions import walk
from rhino.dialect.reducers import kinds
from rhino.dialect.reductions import start_neutral
from rhino.graph.partial import combined


def share_reductions(root: ir.Operation, mesh: str) -> None:
    """Lets reductions that devices share start once, and constrains those that they cannot share.

    No axis of the mesh splits the dimensions that such a one reduces: XLA would end the process, refuse, or compute
    something else.
    """
    start_neutral(root)
    for op in [op for op in walk(root) if op.name == "stablehlo.reduce"]:
        found = kinds(op)
        if not combined(found, tuple(str(result.type.element_type) for result in op.results)):
            _keep_whole(op, mesh, apart="" in found)


def _keep_whole(op: ir.Operation, mesh: str, apart: bool) -> None:
    """Constrains the operands; `apart` from what joins them, as XLA would begin at the start again for each part."""
    reduced = list(ir.DenseI64ArrayAttr(op.attributes["dimensions"]))
    with op.context, op.location, ir.InsertionPoint(op):
        for i in range(len(op.results)):
            dims = [
                sdy.DimensionShardingAttr.get([], is_closed=d in reduced) for d in range(len(op.operands[i].type.shape))
            ]
            sharding = sdy.TensorShardingAttr.get(ir.FlatSymbolRefAttr.get(mesh), dims)
            whole = sdy.ShardingConstraintOp(op.operands[i], sharding).result
            op.operands[i] = stablehlo.OptimizationBarrierOp([whole]).results[0] if apart else whole
