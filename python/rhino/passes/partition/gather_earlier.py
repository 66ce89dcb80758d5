"""The pass rhino-gather-earlier: parameters of layers are gathered while a loop computes the layer before."""

from __future__ import annotations

from typing import ClassVar

from jaxlib.mlir import ir

from rhino.ir.early_gathers import gather_earlier
from rhino.passes.registry import Pass, PassLog, option, register


@register
class GatherEarlier(Pass):
    """Gather a layer's parameters in the trip of a loop before the one that reads them.

    A loop over layers cuts a layer out of the stacks of parameters and, where they are split over devices that compute
    with all of them, gathers it: the first product of a trip waits for that, and others may. With this a trip gathers
    what the next one reads, and hands it on: nothing in the trip waits for it. `rhino compile --overlap` and
    `rhino.parallelize` do so by themselves where computing would wait.

    It takes memory for what is gathered, up to twice. One gather more is made in front of each loop, and the one in its
    last trip, of a row beyond the stack (which is the last row again), is read by nothing.

    Requires: shardings on operations, and constraints where a value is read in another layout, as rhino-plan-sharding
    writes them.

    Ensures: what a constraint gathers, of rows that a trip cuts out of what its loop does not change, by numbers that
    follow from what the loop counts, with element-wise operations and views in between, is carried by the loop.

    Example:
      ```mlir
      %row = stablehlo.dynamic_slice %stack, %i, %zero, sizes = [1, 8] : (tensor<4x8xf32>, ..) -> tensor<1x8xf32>
      %w = sdy.sharding_constraint %row <@mesh, [{}, {}]> : tensor<1x8xf32>                  // %stack is split by x
      %y = stablehlo.dot_general %a, %w, ..
      // becomes, where %before is what the trip before gathered, and %j the next %i
      %y = stablehlo.dot_general %a, %before, ..
      %row = stablehlo.dynamic_slice %stack, %j, %zero, sizes = [1, 8] : (tensor<4x8xf32>, ..) -> tensor<1x8xf32>
      %next = sdy.sharding_constraint %row <@mesh, [{}, {}]> : tensor<1x8xf32>
      stablehlo.return .., %next
      ```
    """

    name: ClassVar[str] = "rhino-gather-earlier"

    first: bool = option(False, "of each loop only what is gathered for its first product")

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Rewrite every loop."""
        changed = gather_earlier(module, self.first)
        log.count("gathers", changed)
        log.unchanged = not changed
