"""The pass rhino-adopt-microbatches: the step's own loop over micro-batches becomes the one of a pipeline."""

from __future__ import annotations

from typing import ClassVar

from jaxlib.mlir import ir

from rhino.ir.import_graph import number_program
from rhino.ir.microbatch.accumulation import NoAccumulation
from rhino.ir.microbatch.adopt import adopt
from rhino.passes.entry import main_function
from rhino.passes.registry import Pass, PassLog, register


@register
class AdoptMicrobatches(Pass):
    """Take the loop over micro-batches that a step has of its own for that of rhino-split-microbatch.

    Large batches are often written as a scan over parts of the batch that adds up gradients, with one update after it.
    Its trips are the micro-batches. The loop is recognised by what it carries: sums, rows of results, counters, values
    that never change, and what depends on nothing else that is carried, such as a key that is split in every trip (it
    is computed ahead, in a loop of its own). A running mean s = c * s + x, BatchNorm's of each part say, becomes a sum
    of the x, each times the c of the trips after it. The loop must be most of the step's work, and take part t of the
    batch in trip t.

    Requires: a function @main without calls (run `rhino-inline`), roles on its arguments (run `rhino-classify-args`).

    Ensures: as rhino-split-microbatch. Results are those of the original, but for the order of additions where a sum
    did not start from zero. A step without such a loop stays as it is; a remark says why one was not taken.

    Example:
      ```mlir
      %1:4 = stablehlo.while(%i = %c0, %xs = %x, %p = %w, %g = %zeros) ... {
        %2 = stablehlo.dynamic_slice %xs, %i, %c0, %c0, sizes = [1, 8, 16]
        ...
        %9 = stablehlo.add %g, %8
        stablehlo.return %7, %xs, %p, %9
      // becomes
      %1:2 = stablehlo.while(%i = %c0, %g = %zeros) attributes {rhino.microbatches = {count = 4 : i64}} ... {
        %2 = stablehlo.dynamic_slice %x, %i, %c0, %c0, sizes = [1, 8, 16]
      ```
    """

    name: ClassVar[str] = "rhino-adopt-microbatches"

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Rewrite in place, or say why not. Time is linear in operations."""
        main = main_function(module, self.name)
        found = adopt(module)
        if isinstance(found, NoAccumulation):
            _, ops = number_program(main)
            log.remark(ops[found.op], found.message, [found.remedy])
        log.count("adopted", int(isinstance(found, int)))
