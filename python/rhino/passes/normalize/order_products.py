"""The pass rhino-order-products: products that loops keep are made in the order in which they are read."""

from __future__ import annotations

from typing import ClassVar

from jaxlib.mlir import ir

from rhino.ir.ordered_products import order_products
from rhino.passes.registry import Pass, PassLog, register


@register
class OrderProducts(Pass):
    """Make a product that a loop keeps of every trip as the transposition has it whose result is kept.

    Scores of grouped attention are such, where a scan over layers keeps them for its gradient. XLA keeps them as the
    product makes them, the second loop reads them as its own products make theirs, and all that the first one stacked
    is transposed in between: for a moment it is there twice. `XLA: stacks-transposed`. A product in the right order
    costs nothing.

    Requires: nothing.

    Ensures: no `stablehlo.dot_general` that is larger than both operands together has one reader alone that transposes
    it, for rows of a stack among others, into an order in which a product can be made: batching dimensions first, then
    those of one operand, then those of the other. Operands are exchanged for that, and transposed if theirs come in
    another order. Products whose algorithm tells their operands apart, or that have a sharding of their own, stay.

    Example:
      ```mlir
      %0 = stablehlo.dot_general %k, %q, contracting_dims = [1] x [1]
        : (tensor<64x8xf32>, tensor<32x8xf32>) -> tensor<64x32xf32>
      %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<64x32xf32>) -> tensor<32x64xf32>
      // becomes
      %1 = stablehlo.dot_general %q, %k, contracting_dims = [1] x [1]
        : (tensor<32x8xf32>, tensor<64x8xf32>) -> tensor<32x64xf32>
      ```
    """

    name: ClassVar[str] = "rhino-order-products"

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Rewrite every product of the module."""
        changed = order_products(module)
        log.count("products", changed)
        log.unchanged = not changed
