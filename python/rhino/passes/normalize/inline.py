"""The pass rhino-inline: calls are replaced by what they call."""

from __future__ import annotations

from typing import ClassVar

from jaxlib.mlir import ir

from rhino.ir.inline import inline_calls
from rhino.passes.registry import Pass, PassLog, register


@register
class Inline(Pass):
    """Replace calls by the body of the function called, as MLIR's `inline` does, only faster for long programs.

    Operations keep where they come from: their location is the callee's at the call's. Functions that nothing calls
    any more are left to `symbol-dce`. A `stablehlo.composite` is a call of what it is composed of: no part of it could
    be split otherwise, and XLA takes none in a program of several devices.

    Requires: no function calls itself, directly or through others. Calls of declarations and of functions with several
    blocks are left.

    Ensures: no other `func.call` or `stablehlo.composite` is left in the module.

    Example:
      ```mlir
      %0 = func.call @relu(%x) : (tensor<4xf32>) -> tensor<4xf32>
      // becomes what @relu does
      %0 = stablehlo.maximum %x, %zero : tensor<4xf32>
      ```
    """

    name: ClassVar[str] = "rhino-inline"

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Rewrite in place. Raises PassError on recursion."""
        inline_calls(module)
