"""The pass rhino-split-microbatch: a training step becomes a loop over micro-batches that adds up gradients."""

from __future__ import annotations

from typing import ClassVar

from jaxlib.mlir import ir

from rhino.errors import RhinoError
from rhino.ir.microbatch.split import split_microbatch
from rhino.passes.entry import main_function, require_static_shapes
from rhino.passes.registry import Pass, PassLog, asked, option, register


@register
class SplitMicrobatch(Pass):
    """Run a training step on parts of the batch, one after the other, and add up what it sums over the batch.

    The batch's dimension is followed through the program. What has it is computed in a loop, for some of the examples
    at a time; what is summed over it (gradients, the loss) is accumulated; what needs the sums (the optimizer, metrics)
    comes after the loop, and what does not depend on the batch before it. Nothing is divided by the number of
    micro-batches: the constants of a mean are in the program already. Results are those of the original, but for the
    order of additions. Sums in bfloat16 or float16 are kept in float32.

    Micro-batch i of N has the examples i, i + N, i + 2N, .., so that a batch sharded over devices stays where it is. Of
    N, groups that are computed together (of a mixture of experts) stay together. Random numbers are those the whole
    batch would have seen. Results with the batch's dimension are collected.

    With `sums=R`, what is added up is kept as R local sums, a dimension in front: each is over an R-th of a
    micro-batch's examples, and all are added up after the loop. Devices that share that dimension out send nothing
    before. A sum stays one where its operations cannot be done so: those of convolutions and kernels.

    A step is refused, at the operation, if an example needs something of all examples that is not a result: batch
    statistics, a contrastive loss, a sort of the batch. With `statistics=micro-batch`, each micro-batch takes its own
    part of a sum, times their number, for a sum that its examples need: BatchNorm normalises by micro-batch, and so do
    its gradients. What only comes after the loop, such as running statistics, still gets the sums over all examples.
    Results are then not those of the original, and the loop's attribute says so. With `count=1` nothing is refused for
    this: what depends on the batch is in the loop, which runs once, but for the cheap operations at its end.

    Requires: a function @main with static shapes and no calls (run `rhino-inline`), roles on its arguments (run
    `rhino-classify-args`). The arguments with the role batch and its leading size are split.

    Ensures: one loop in @main has `rhino.microbatches`; it carries a counter of type i32, the sums and the collected
    results, and reads everything else from outside. What makes local sums has `rhino.sums`. Arguments and results
    keep their types and attributes.

    Example:
      ```mlir
      // rhino-opt --rhino-split-microbatch=count=2
      func.func @main(%w: tensor<4xf32>, %x: tensor<8x4xf32> {rhino.role = "batch"}) -> tensor<4xf32> {
        %0 = stablehlo.exponential %x : tensor<8x4xf32>
        %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [0]
        %2 = stablehlo.subtract %w, %1 : tensor<4xf32>
      // becomes
        %0 = stablehlo.reshape %x : (tensor<8x4xf32>) -> tensor<4x2x4xf32>
        %1:2 = stablehlo.while(%i = %c, %sum = %zeros) attributes {rhino.microbatches = {count = 2 : i64}}
        do {
          %3 = stablehlo.dynamic_slice %0, %c, %i, %c, sizes = [4, 1, 4]
          %4 = stablehlo.reshape %3 : (tensor<4x1x4xf32>) -> tensor<4x4xf32>
          %5 = stablehlo.exponential %4 : tensor<4x4xf32>
          %6 = stablehlo.reduce(%5 init: %zero) applies stablehlo.add across dimensions = [0]
          %7 = stablehlo.add %sum, %6 : tensor<4xf32>
          ...
        %2 = stablehlo.subtract %w, %1#1 : tensor<4xf32>
      ```
    """

    name: ClassVar[str] = "rhino-split-microbatch"

    count: int = option(1, "the number of micro-batches")
    statistics: str = asked("statistics")
    sums: int = option(1, "as how many local sums each value is added up, if it can be; 1 for none")

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Analyse and rewrite. Raises PassError where the step cannot be split, RhinoError for a bad option."""
        if self.count < 1:
            raise RhinoError(f"count {self.count} is not a number of micro-batches", "give 1 or more")
        if self.sums < 1:
            raise RhinoError(f"sums {self.sums} is not a number of local sums", "give 1 or more")
        if self.sums > 1 and self.count == 1:
            raise RhinoError("one micro-batch adds nothing up, and has no local sums", "give a count of 2 or more")
        main = main_function(module, self.name)
        require_static_shapes(main, self.name)
        for what, n in split_microbatch(module, self.count, self.statistics, sums=self.sums).items():
            log.count(what, n)
