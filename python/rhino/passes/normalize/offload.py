"""The pass rhino-offload: optimizer state in the memory of the host between steps."""

from __future__ import annotations

from typing import ClassVar

from jaxlib.mlir import ir

from rhino.errors import RhinoError
from rhino.ir.offload import offload
from rhino.passes.entry import main_function, require_static_shapes
from rhino.passes.registry import Pass, PassLog, option, register


@register
class Offload(Pass):
    """Keep optimizer state in the memory of the host: each update brings what it needs, and returns it.

    An update is what a step computes element by element of the state of one parameter, or of several that it combines.
    Its operations are put together, as soon as its gradient is there, between copies from and to the host. One update
    waits for the one before it behind a `stablehlo.optimization_barrier`, so that a device has the state of few at a
    time, whatever order XLA chooses. Of stacks that a loop over layers goes through, with rows of 1 MiB or more, the
    update is a loop, too: it brings a row of each, and updates that follow each other are one loop.

    Requires: a function @main with static shapes and no calls (run `rhino-inline`), and roles (run
    `rhino-classify-args`).

    Ensures: @main computes the same numbers. Arguments of the state, and the results that take their buffers, have the
    `mhlo.memory_kind` "pinned_host". State that something else reads, too, that is smaller than 1 MiB, whose buffer no
    result takes, or whose update needs sums of its own values (LAMB) stays on the devices. A remark tells where there
    is none to move.

    Example:
      ```mlir
      func.func @main(%w: .., %m: tensor<1024x1024xf32> {rhino.role = "opt_state", tf.aliasing_output = 1 : i32}, ..
        %next = stablehlo.add %m, %g
      // becomes
      func.func @main(%w: .., %m: tensor<1024x1024xf32> {mhlo.memory_kind = "pinned_host", ..}, ..
        %held:2 = stablehlo.optimization_barrier %m, %g
        %here = stablehlo.custom_call @annotate_device_placement(%held#0) {.. _xla_buffer_placement = "device"}
        %next = stablehlo.add %here, %g
        %there = stablehlo.custom_call @annotate_device_placement(%next) {.. _xla_buffer_placement = "pinned_host"}
      ```
    """

    name: ClassVar[str] = "rhino-offload"

    count: int = option(-1, "how many updates, those of most state; -1: all")

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Read, choose, write. Raises RhinoError if the count is below -1."""
        if self.count < -1:
            raise RhinoError(f"'{self.name}' needs a count of updates, got {self.count}", "give -1 for all of them")
        main = main_function(module, self.name)
        require_static_shapes(main, self.name)
        done = offload(module, self.count)
        if not (done.updates or done.brought) and self.count:
            log.remark(main, "no optimizer state can be kept in the memory of the host")
        log.count("updates", len(done.updates))
        log.count("brought", done.brought)
        log.count("bytes", sum(update.nbytes for update in done.updates))
