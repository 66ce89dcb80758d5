"""The pass rhino-sum-later: gradients of layers that a loop makes are summed over devices while it makes the next."""

from __future__ import annotations

from typing import ClassVar

from jaxlib.mlir import ir

from rhino.dialect.sdy import mesh_axes
from rhino.errors import RhinoError
from rhino.ir.late_sums import sum_later
from rhino.passes.registry import Pass, PassLog, option, register


@register
class SumLater(Pass):
    """Put the sum over devices of a layer's gradient off to the next trip of the loop that makes it.

    A loop over layers writes each layer's gradient into a stack in the trip that makes it, and devices add up what
    each has of it in the same trip: XLA has little left to compute meanwhile. With this a trip hands on what each
    device has added up itself, and writes the gradient of the trip before: the sum, and the scattering of it, waits
    for nothing in the trip, and nothing waits for it. The last one is behind the loop. `rhino compile --overlap` and
    `rhino.parallelize` do so by themselves where computing would wait.

    It takes memory for one layer's gradients, as a device adds them up: not yet divided by what the axes divide.

    Requires: shardings on operations, as rhino-plan-sharding writes them.

    Ensures: a stack that a loop carries, which starts as zeros, and in which a trip but writes a row made of one dot or
    of one sum of one tensor, with conversions, transpositions and views in between, is written a trip later, where the
    axes split dimensions that are summed. The sum goes first over the axes that divide a dimension of the gradient, all
    at once, dimension by dimension, and then over all others. Where the first of them divides a dimension that a dot
    makes of its right operand, the dot's operands change places, so that what is handed on lies as it is sent. What a
    trip adds up of what was carried to it, a bias's gradient, is made later, too; what it only sums over devices is
    left, since that waits already.

    Example:
      ```mlir
      %g = stablehlo.dot_general %a, %b, contracting_dims = [0] x [0] {sdy.sharding = <@mesh, [{}, {}]>}
        : (tensor<64x4xf32>, tensor<64x4xf32>) -> tensor<4x4xf32>      // %a and %b split by x, of size 2
      %row = stablehlo.reshape %g : (tensor<4x4xf32>) -> tensor<1x4x4xf32>
      %next = stablehlo.dynamic_update_slice %stack, %row, %i, %zero, %zero
      // becomes, where %before is what the trip before made of its %parts, and %j its %i
      %parts = stablehlo.dot_general %a2, %b2, batching_dims = [0] x [0], contracting_dims = [1] x [1]
        : (tensor<2x32x4xf32>, tensor<2x32x4xf32>) -> tensor<2x4x4xf32>
      %g = stablehlo.reduce(%before init: %f) applies stablehlo.add across dimensions = [0]
      %row = stablehlo.reshape %g : (tensor<4x4xf32>) -> tensor<1x4x4xf32>
      %next = stablehlo.dynamic_update_slice %stack, %row, %j, %zero, %zero
      ```
    """

    name: ClassVar[str] = "rhino-sum-later"

    axes: tuple[str, ...] = option((), "sums over one of these at least; of the mesh, by default all")

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Rewrite every loop. Raises RhinoError for an axis that the mesh does not have."""
        known = dict.fromkeys(axis for axes in mesh_axes(module).values() for axis, _ in axes)
        for axis in self.axes:
            if axis not in known:
                raise RhinoError(
                    f"no mesh has an axis {axis!r}", f"those of the module are {', '.join(known) or 'none'}"
                )
        changed = sum_later(module, self.axes)
        log.count("gradients", changed)
        log.unchanged = not changed
