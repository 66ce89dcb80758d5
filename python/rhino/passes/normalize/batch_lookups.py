"""The pass rhino-batch-lookups: what is looked up by the number of the example is looked up within the example."""

from __future__ import annotations

from typing import ClassVar

from jaxlib.mlir import ir

from rhino.dialect.lookups import batch_lookups
from rhino.passes.registry import Pass, PassLog, register


@register
class BatchLookups(Pass):
    """Let gathers and scatters whose indices count along a dimension have it as a batching dimension.

    `logits[jnp.arange(n), labels]` and `x.at[jnp.arange(n), i].set(y)` take each example by its number, so that devices
    and micro-batches would need all of them. `jnp.take_along_axis` and `jax.vmap` lower to what is made here.

    Requires: nothing.

    Ensures: no gather or scatter has, beside other indices, one that is 0, 1, 2, .. along a dimension of its indices
    and of all the operand's dimension: from `stablehlo.iota` or a constant, through broadcasts, reshapes, conversions
    and jax's test for negative numbers.

    Example:
      ```mlir
      %n = stablehlo.iota dim = 0 : tensor<8x1xi32>
      %i = stablehlo.concatenate %n, %labels, dim = 1
      %0 = "stablehlo.gather"(%x, %i) <{collapsed_slice_dims = [0, 1], start_index_map = [0, 1], ..}>
      // becomes
      %0 = "stablehlo.gather"(%x, %labels) <{collapsed_slice_dims = [1], operand_batching_dims = [0],
                                             start_indices_batching_dims = [0], start_index_map = [1], ..}>
      ```
    """

    name: ClassVar[str] = "rhino-batch-lookups"

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Rewrite every function of the module."""
        changed = batch_lookups(module.operation)
        log.count("look-ups", changed)
        log.unchanged = not changed
