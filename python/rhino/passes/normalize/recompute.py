"""The pass rhino-recompute: the backward pass computes again what the forward pass would keep for it."""

from __future__ import annotations

from typing import ClassVar

from jaxlib.mlir import ir

from rhino.errors import RhinoError
from rhino.ir.recompute.step import recompute, undo
from rhino.passes.entry import main_function, require_static_shapes
from rhino.passes.registry import Pass, PassLog, option, register


@register
class Recompute(Pass):
    """Keep less of a training step's forward pass: the backward pass computes the rest again.

    The forward pass is cut into segments where it is narrow, such as between layers. What crosses a cut is kept; of
    what else the backward pass reads, a policy says what is kept, too:

    - `none`: also what the step computes again as it is. See below.
    - `keep`: all, as the step has it. Nothing changes.
    - `dots`: results of products with parameters and of kernels, or less where less is enough. Element-wise work, and
      the scores of attention, are computed again.
    - `layers`: nothing. Each segment is computed again from what crosses into it.

    A loop over layers that a second one goes back over, as `lax.scan` and its gradient are, is computed again in the
    second one, layer by layer: what it stacked for that is gone, but for what a policy keeps.

    The copies read through a `stablehlo.optimization_barrier` that also holds a cotangent: XLA neither merges them with
    the originals nor makes them early; in a loop they need none. The last segment, whose backward pass comes at once,
    is never computed again.

    With `none` the step is made what it would be without `jax.checkpoint`: operations that are done again behind a
    barrier are taken out with it, and a loop over layers stacks what the second one would do again, but for what is
    only another view or copy of what is there. What nothing before has done, on the same values, stays. Other loops
    over layers stack less, too: what is fused into the kernels that read it is made there.

    Requires: a function @main with static shapes and no calls (run `rhino-inline`), and roles (run
    `rhino-classify-args`).

    Ensures: @main computes the same numbers by the same operations. What has effects or makes random numbers of a
    hidden state is done once. A remark tells where nothing could be computed again, and why.

    Example:
      ```mlir
      %y = stablehlo.tanh %x
      ...
      %dx = stablehlo.multiply %dy, %y
      // becomes
      %y = stablehlo.tanh %x
      ...
      %held:2 = stablehlo.optimization_barrier %x, %dy
      %again = stablehlo.tanh %held#0
      %dx = stablehlo.multiply %held#1, %again
      ```
    """

    name: ClassVar[str] = "rhino-recompute"

    policy: str = option("layers", "what is kept", choices=("none", "keep", "dots", "layers"))
    count: int = option(-1, "how many segments are computed again, the first ones; -1: all but the last")
    loops: int = option(
        -1, "how many loops over layers, the first ones, those of one trip included; -1: all of several trips"
    )

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Read, choose, write. Raises RhinoError if a count is below -1."""
        for what, count in (("segments", self.count), ("loops", self.loops)):
            if count < -1:
                raise RhinoError(f"'{self.name}' needs a count of {what}, got {count}", "give -1 for all of them")
        main = main_function(module, self.name)
        require_static_shapes(main, self.name)
        if self.policy == "keep":
            return
        if self.policy == "none":
            undone = undo(module)
            if not undone.changed:
                log.remark(main, "the step computes nothing again")
            log.count("loops", undone.loops + undone.fused)
            log.count("operations", undone.operations)
            return
        done = recompute(module, self.policy, self.count, self.loops)
        if done.reason:
            log.remark(main, f"nothing is computed again: {done.reason}")
        log.count("segments", done.segments)
        log.count("recomputed", done.recomputed)
        log.count("loops", done.loops)
        log.count("operations", done.operations)
