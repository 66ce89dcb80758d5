"""The pass rhino-verify: the rhino dialect's verifier as a step of a pipeline."""

from __future__ import annotations

from typing import ClassVar

from jaxlib.mlir import ir

from rhino.dialect.verify import verify
from rhino.passes.registry import Pass, PassLog, register


@register
class Verify(Pass):
    """Check the module by the C++ verifiers, every rhino attribute, and what those of sdy and mpmd let pass.

    Each `rhino.*` attribute must be known, stand where it belongs, and have a value of its schema. In addition: a
    mesh in a function's signature is in its topology, mesh names are unique, meshes share no device, a transfer
    leaves its mesh. `rhino-opt` runs it by itself after each rhino pass, unless --verify-each=false;
    `rhino plan` runs it before the first pass and after the last.

    Requires: nothing.

    Ensures: the module is unchanged; every problem is an error at its operation.

    Example:
      ```mlir
      func.func @main(%a: tensor<4xf32> {rhino.role = "weight"}) -> tensor<4xf32>
      // error: rhino.role must be one of "param", "opt_state", "batch", "other", got "weight" (argument 0)
      ```
    """

    name: ClassVar[str] = "rhino-verify"

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Report the problems of the module."""
        module.operation.verify()
        verify(module, log)
