"""The pass rhino-pair-trips: two trips in one of loops whose trips gather for the next one."""

from __future__ import annotations

from typing import ClassVar

from jaxlib.mlir import ir

from rhino.ir.paired_trips import pair_trips
from rhino.passes.registry import Pass, PassLog, register


@register
class PairTrips(Pass):
    """Put two trips in one where a loop's trip gathers what the next one reads, as rhino-gather-earlier has it.

    What a trip gathers for the next one cannot lie where what it reads itself lies: at the end of each trip XLA copies
    it there. In a body of two trips the second one gathers into the place of what only the first one has read, and
    nothing is copied. `rhino compile --overlap` and `rhino.parallelize` do so wherever they gather earlier.

    It takes no memory of a device but another place for what a loop adds up. Programs grow by a trip, or by two where
    their number is odd: then the first is in front of the loop.

    Requires: shardings on operations, and constraints where a value is read in another layout, as rhino-plan-sharding
    writes them.

    Ensures: a loop that ends by its count alone, and whose trips gather by a constraint what the next reads, has two
    trips in one, an `optimization_barrier` between them, so that XLA puts nothing of the first beside the second; only
    what the loop counts goes on beside it. What it only adds up has two places, one for what the second trips add, and
    they are added behind the loop: XLA sums each over devices there, once. Applied twice, four trips are in one.

    Example:
      ```mlir
      %r:2 = stablehlo.while(%i = %zero, %w = %first) .. do {
        %used = stablehlo.dot_general %a, %w, ..
        %next = sdy.sharding_constraint %row <@mesh, [{}, {}]> : tensor<8x8xf32>
        stablehlo.return %j, %next : tensor<i32>, tensor<8x8xf32>
      }
      // becomes
      %r:2 = stablehlo.while(%i = %zero, %w = %first) .. do {
        %used = stablehlo.dot_general %a, %w, ..
        %next = sdy.sharding_constraint %row <@mesh, [{}, {}]> : tensor<8x8xf32>
        %b:2 = stablehlo.optimization_barrier %j, %next : tensor<i32>, tensor<8x8xf32>
        %again = stablehlo.dot_general %a, %b#1, ..
        %last = sdy.sharding_constraint %row1 <@mesh, [{}, {}]> : tensor<8x8xf32>
        stablehlo.return %j1, %last : tensor<i32>, tensor<8x8xf32>
      }
      ```
    """

    name: ClassVar[str] = "rhino-pair-trips"

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Rewrite every loop."""
        changed = pair_trips(module)
        log.count("loops", changed)
        log.unchanged = not changed
