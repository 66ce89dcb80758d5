"""The pass rhino-accumulate-in-loops: gradients of stacked layers are added up in the loop that makes them."""

from __future__ import annotations

from typing import ClassVar

from jaxlib.mlir import ir

from rhino.ir.microbatch.accumulate import accumulate_in_loops
from rhino.passes.entry import main_function
from rhino.passes.registry import Pass, PassLog, register


@register
class AccumulateInLoops(Pass):
    """Let loops over layers add to the accumulators of a micro-batch loop instead of making stacks that are added.

    The backward pass of a scan writes the gradient of layer i into row i of a stack that starts as zeros, and
    rhino-split-microbatch adds the stack to an accumulator. Both take the memory of all gradients. With the accumulator
    as what the loop starts with, and each row added to, only one is needed.

    Requires: the loop of rhino-split-microbatch; without it nothing changes.

    Ensures: the same results; each row is added to once per micro-batch, as before.

    Example:
      ```mlir
      %r:2 = stablehlo.while(%i = %c0, %s = %zeros) ... { %t = stablehlo.dynamic_update_slice %s, %g, %i, %c0 }
      %n = stablehlo.add %acc, %r#1
      // becomes, with %r#1 in the place of %n
      %r:2 = stablehlo.while(%i = %c0, %s = %acc) ... {
        %row = stablehlo.dynamic_slice %s, %i, %c0, sizes = [1, 4]
        %sum = stablehlo.add %row, %g
        %t = stablehlo.dynamic_update_slice %s, %sum, %i, %c0
      }
      ```
    """

    name: ClassVar[str] = "rhino-accumulate-in-loops"

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Find such stacks and rewrite them in place."""
        main_function(module, self.name)
        stacks = accumulate_in_loops(module)
        if stacks:
            log.count("stacks", stacks)
