"""The pass rhino-split-scans: a loop over layers becomes several, each over its own layers of the stacked arrays."""

from __future__ import annotations

from typing import ClassVar

from jaxlib.mlir import ir

from rhino.errors import RhinoError
from rhino.ir.scans.layers import split_scans
from rhino.passes.entry import main_function, require_static_shapes
from rhino.passes.registry import Pass, PassLog, option, register


@register
class SplitScans(Pass):
    """Split loops over layers into `count` loops, so that a pipeline can be cut between them.

    `lax.scan` over L layers is one loop that reads layer i of stacked parameters [L, ..] in trip i, and a backward loop
    that runs in reverse. Both become `count` loops of L / count trips (sizes differ by at most one), one after the
    other, each reading a slice of the stacked arrays. Whatever else has a dimension of layers is cut alike, wherever it
    flows: saved activations, gradients, optimizer state, the element-wise operations of the update, casts, constants. A
    reduction over the layers, such as a gradient norm, becomes one per piece and a combination of the results. An
    operation that needs all layers at once gets them by a `concatenate` in front.

    A loop is split if an array that it reads layer by layer has its layers from parameters, or if it shares such arrays
    with a loop that is. All others stay as they are: loops over time steps use the same parameters in each trip. So do
    loops whose counter does not run from 0 in steps of 1 to a constant. Of nested loops, the outer one is split.

    Requires: a function @main with static shapes and no calls (run `rhino-inline`), and roles (run
    `rhino-classify-args`).

    Ensures: @main keeps its type and computes what it did, up to the order of sums. Arrays of L layers remain as
    arguments of @main, read through one static slice per piece, and as results, made by one `concatenate` right before
    the return; others are counted as `joined` and `cut`.

    Example:
      ```mlir
      %r:3 = stablehlo.while(%i = %c0, %x = %input, %w = %arg0) : tensor<i32>, tensor<4xf32>, tensor<8x4xf32> ...
      // becomes, with count=2
      %w0 = stablehlo.slice %arg0 [0:4, 0:4] : (tensor<8x4xf32>) -> tensor<4x4xf32>
      %w1 = stablehlo.slice %arg0 [4:8, 0:4] : (tensor<8x4xf32>) -> tensor<4x4xf32>
      %r:3 = stablehlo.while(%i = %c0, %x = %input, %w = %w0) : tensor<i32>, tensor<4xf32>, tensor<4x4xf32> ...
      %s:3 = stablehlo.while(%i = %c0, %x = %r#1, %w = %w1) : tensor<i32>, tensor<4xf32>, tensor<4x4xf32> ...
      ```
    """

    name: ClassVar[str] = "rhino-split-scans"

    count: int = option(2, "how many loops each loop over layers becomes, or as many as it has trips")
    force: bool = option(False, "also split loops that read no stacked parameter, such as loops over time steps")
    explain: bool = option(False, "emit a remark at each loop: how it is split, or why not")

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Find the loops, follow their stacked arrays, rewrite. Raises RhinoError if the count is below 1."""
        if self.count < 1:
            raise RhinoError(f"'{self.name}' needs a count of at least 1, got {self.count}", "give count=2 or more")
        main = main_function(module, self.name)
        require_static_shapes(main, self.name)
        tell = log.remark if self.explain else None
        for what, n in split_scans(module, self.count, self.force, tell).items():
            log.count(what, n)
