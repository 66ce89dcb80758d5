"""The pass rhino-neutral-starts: reductions start from what changes nothing, so that they can be done in parts."""

from __future__ import annotations

from typing import ClassVar

from jaxlib.mlir import ir

from rhino.dialect.reductions import start_neutral
from rhino.passes.registry import Pass, PassLog, register


@register
class NeutralStarts(Pass):
    """Let reductions start from what changes nothing, and combine them with their start afterwards.

    XLA takes the start of a reduction for neutral. Where a reduction is split over devices, or reads tensors that were
    joined, each part starts from it, which counts several times then, or from nothing if it is a single row. Of windows
    the padding counts as nothing, as XLA has it.

    Requires: nothing.

    Ensures: every `stablehlo.reduce`, `reduce_window` and `select_and_scatter` whose reducer is one operation (add,
    multiply, maximum, minimum, and, or, xor) starts from its neutral element; for several results, each.

    Example:
      ```mlir
      %0 = stablehlo.reduce(%x init: %start) applies stablehlo.add across dimensions = [0]
      // becomes
      %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0]
      %1 = stablehlo.broadcast_in_dim %start, dims = []
      %2 = stablehlo.add %1, %0
      ```
    """

    name: ClassVar[str] = "rhino-neutral-starts"

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Rewrite every function of the module."""
        changed = start_neutral(module.operation)
        log.count("reductions", changed)
        log.unchanged = not changed
