"""The pass rhino-describe-kernels: calls of kernels get a sharding rule and what they cost."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.errors import RhinoError
from rhino.ir.diagnostics import PassError, PassLog
from rhino.ir.kernel_calls import (
    CUSTOM_CALL,
    PARTITIONED_BY_JAX,
    RULE,
    is_opaque,
    known_kernel,
    own_name,
    read_call,
    read_rule,
    rule_attribute,
    safe,
    target_of,
    without_tuple,
    write_kernel,
)
from rhino.kernels.bodies import TARGET
from rhino.kernels.data import KernelCall, Known, Refused
from rhino.kernels.table import describe, find
from rhino.passes.entry import main_function
from rhino.passes.registry import Pass, register
from rhino.program.data import Kernel


@register
class DescribeKernels(Pass):
    """Write on each call of a kernel how it can be split over devices, and what it costs.

    The table of kernels knows cuDNN's attention and many others; `rhino.kernels.register` adds to it. What it says
    comes before a rule that the call brings. A call that neither knows is computed whole by every device.

    Requires: a function @main with static shapes and no calls (run `rhino-inline`).

    Ensures: each such call has `rhino.kernel`, and `sdy.sharding_rule` if it can be split. A remark at a call that
    cannot says why. A call that makes a tuple, as in files made of HLO, makes its elements instead.

    Example:
      ```mlir
      // rhino-opt --rhino-describe-kernels
      %0:3 = stablehlo.custom_call @__cudnn$fmhaSoftmax(%q, %k, %v) {backend_config = ".."} : ...
      // becomes
      %0:3 = stablehlo.custom_call @__cudnn$fmhaSoftmax(%q, %k, %v) {backend_config = "..",
        rhino.kernel = {bytes = 29425664 : i64, flops = 8589934592 : i64, name = "cudnn-attention",
                        rate = "attention", type = "bf16"},
        sdy.sharding_rule = #sdy.op_sharding_rule<([i, j, kl, m], [i, n, k, m], [i, n, k, o])->([i, kl, j, o], ..)
      ```
    """

    name: ClassVar[str] = "rhino-describe-kernels"

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Annotate. Raises PassError at a call that only the process that traced it can partition."""
        main = main_function(module, self.name)
        # Those of a traced step are described already.
        calls = [
            op
            for op in functions.walk(main)
            if target_of(op) != TARGET and (is_opaque(op) or find(target_of(op)) is not None)
        ]
        log.unchanged = not calls
        for op in calls:
            self._call(without_tuple(op), log)

    def _call(self, op: ir.Operation, log: PassLog) -> None:
        target = target_of(op)
        if target == PARTITIONED_BY_JAX:
            raise PassError(
                op,
                "only the process that exported this file can partition this call, by a callback of its own",
                [
                    "export the step for one device, which writes out what the call stands for, or plan it in Python "
                    "with rhino.parallelize"
                ],
            )
        call = read_call(op)
        why, flops, nbytes = "", 0, call.nbytes
        try:
            found = describe(call)
        except Refused as refused:
            found, why, flops = None, str(refused), refused.flops
            nbytes = refused.nbytes or nbytes
        except RhinoError as error:
            raise PassError(op, error.message, [error.remedy] if error.remedy else []) from error
        if found is not None:
            entry, known = found
            whole = _nothing_to_split(known)
            if whole:
                log.remark(op, f"{entry.name} is computed whole by every device: {whole}")
            write_kernel(op, replace(known_kernel(entry.name, known), replicated=whole))
            op.attributes[RULE] = rule_attribute(known.rule, op.context)
            log.count("described")
            return
        rate = "tensor" if flops else "vector"
        name = own_name(op) if op.name == CUSTOM_CALL else ""
        kernel = Kernel(name or target, flops, nbytes, _type(call), rate)
        if not why and RULE in op.attributes:
            op.attributes[RULE] = rule_attribute(safe(read_rule(op.attributes[RULE])), op.context)
            log.count("own-rule")
        else:
            kernel = replace(kernel, replicated=why or _unknown(target))
            log.count("unknown")
            log.remark(op, f"@{target} is computed whole by every device: {kernel.replicated}")
        write_kernel(op, kernel)


def _nothing_to_split(known: Known) -> str:
    """Why no factor may be split, where none may; empty if one may."""
    free = [f for f, size in enumerate(known.rule.factor_sizes) if size > 1 and f not in known.rule.replicate]
    return "" if free else "; ".join(dict.fromkeys(known.whole.values()))


def _type(call: KernelCall) -> str:
    return call.operands[0].dtype if call.operands else "f32"


def _unknown(target: str) -> str:
    return f"nobody said how it can be split; rhino.kernels.register('{target}', rule=..) does"
