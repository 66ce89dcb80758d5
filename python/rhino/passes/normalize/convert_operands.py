"""The pass rhino-convert-operands: what a product's algorithm converts is converted by an operation of its own."""

from __future__ import annotations

from typing import Any, ClassVar

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect.functions import walk
from rhino.passes.registry import Pass, PassLog, register

_DOT = "stablehlo.dot_general"
_NARROW = (ir.BF16Type, ir.F16Type)


@register
class ConvertOperands(Pass):
    """Write out the conversions that the algorithm of a product makes of its operands.

    `jax.nn.dot_product_attention` asks for bfloat16 products with float32 sums on GPUs; the gradient of the scores,
    which is float32, is then rounded for the two products that read it. XLA does so where that gradient is made, and
    memory holds half of what the operands' types say. Rhino sees it, and what has to be sent is half as large, too.

    Requires: nothing.

    Ensures: no `stablehlo.dot_general` reads a tensor of wider floats than the bfloat16 or float16 that its `algorithm`
    multiplies, unless it makes one product of several (`num_primitive_operations`). Products with the same operand, in
    one block, read the same conversion. What they compute is the same, by what StableHLO says of `dot_general`; XLA's
    CPU back end, which ignores algorithms, would not have rounded.

    Example:
      ```mlir
      %0 = stablehlo.dot_general %g, %k, ..., algorithm = <lhs_precision_type = bf16, ...>
        : (tensor<64x64xf32>, tensor<64x64xbf16>) -> tensor<64x64xf32>
      // becomes
      %n = stablehlo.convert %g : (tensor<64x64xf32>) -> tensor<64x64xbf16>
      %0 = stablehlo.dot_general %n, %k, ... : (tensor<64x64xbf16>, tensor<64x64xbf16>) -> tensor<64x64xf32>
      ```
    """

    name: ClassVar[str] = "rhino-convert-operands"

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Rewrite every product of the module."""
        made: dict[tuple[Any, Any, Any], Any] = {}
        for op in [op for op in walk(module.operation) if op.name == _DOT and "algorithm" in op.attributes]:
            for slot, wanted in _read_as(op):
                value = op.operands[slot]
                key = (op.block, value, wanted)
                if key not in made:
                    with op.context, op.location, ir.InsertionPoint(op):
                        narrow = ir.RankedTensorType.get(value.type.shape, wanted, value.type.encoding)
                        made[key] = stablehlo.ConvertOp(narrow, value).result
                op.operands[slot] = made[key]
        log.count("conversions", len(made))
        log.unchanged = not made


def _read_as(op: ir.Operation) -> list[tuple[int, ir.Type]]:
    """The operands that an algorithm converts to narrower floats: (position, element type)."""
    algorithm = stablehlo.DotAlgorithm(op.attributes["algorithm"])
    if algorithm.num_primitive_operations > 1:
        return []
    wanted = (algorithm.lhs_precision_type, algorithm.rhs_precision_type)
    given = [operand.type.element_type for operand in op.operands]
    return [
        (slot, narrow)
        for slot, (narrow, wide) in enumerate(zip(wanted, given, strict=True))
        if isinstance(narrow, _NARROW) and isinstance(wide, ir.F32Type | ir.F64Type)
    ]
