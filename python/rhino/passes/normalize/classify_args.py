"""The pass rhino-classify-args: what each argument of @main is to training."""

from __future__ import annotations

from typing import ClassVar

from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.dialect.attributes import RhinoReturned, RhinoRole
from rhino.ir.argument_flow import program_flow
from rhino.passes.entry import main_function, require_static_shapes
from rhino.passes.registry import Pass, PassLog, option, register
from rhino.program.roles import decide


@register
class ClassifyArgs(Pass):
    """Give each argument of @main its role: param, opt_state, batch or other.

    The role follows from donation and dataflow. State is what the step returns updated: aliased by
    `tf.aliasing_output`, or, when donated as `jax.buffer_donor` or not at all, the source of the elements of an output
    of its own type. Where `rhino.returned` gives the places of arguments in pytrees, a tree is state if results of a
    tree just like it are made of most of its leaves, whether others are donated or not. State that enters the
    computation and on which the loss depends is a parameter, other state is optimizer state; that includes step counts
    and the running statistics of BatchNorm, which training updates but does not read. What is not returned is a
    parameter when used as a weight, and batch when it has the leading dimension of the data. Scalars that are not
    state, PRNG keys and the rest are other.

    Requires: a function @main with static shapes. Calls are looked through, so `rhino-inline` may come later.

    Ensures: every argument of @main has `rhino.role`, none `rhino.returned`. Roles already given are kept. Nothing else
      changes.

    Example:
      ```mlir
      func.func @main(%w: tensor<8x4xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<2x8xf32>) -> (tensor<8x4xf32>, ..)
      // becomes
      func.func @main(%w: tensor<8x4xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32},
                      %x: tensor<2x8xf32> {rhino.role = "batch"}) -> (tensor<8x4xf32>, ..)
      ```
    """

    name: ClassVar[str] = "rhino-classify-args"

    explain: bool = option(False, "emit a remark at each argument with the reason for its role")

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Write the roles."""
        main = main_function(module, self.name)
        require_static_shapes(main, self.name)
        attributes = functions.argument_attributes(main)
        arguments = main.regions[0].blocks[0].arguments
        for argument, given, decision in zip(arguments, attributes, decide(program_flow(module, main)), strict=True):
            given.pop(RhinoReturned.name, None)
            if RhinoRole.name in given:
                log.count("kept")
                continue
            given[RhinoRole.name] = RhinoRole.to_attr(decision.role, module.context)
            log.count(decision.role)
            if self.explain:
                log.remark(argument.location, f"{decision.role}: {decision.why}")
        functions.set_argument_attributes(main, attributes)
