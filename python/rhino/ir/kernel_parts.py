"""Calls of kernels that work on less: configuration, costs and rule made to suit.

Owns this rewriting of a copy of a call.
"""

from __future__ import annotations

from dataclasses import replace

from jaxlib.mlir import ir

from rhino.ir.kernel_calls import (
    CUSTOM_CALL,
    RULE,
    kernel_of,
    read_call,
    renumbered,
    rule_attribute,
    rule_of,
    write_config,
    write_kernel,
)
from rhino.kernels.table import find


def suit_shapes(op: ir.Operation, made: ir.Operation, parts: int) -> None:
    """Makes a copy of a call whose operands and results have other shapes a call with these: configuration, costs.

    Args:
      parts: how much less arithmetic it is. Of memory traffic it has its share of operands and results.
    """
    call, now = read_call(op), read_call(made)
    entry = find(call.target)
    if entry is not None and entry.resize is not None and op.name == CUSTOM_CALL:
        write_config(made, entry.resize(call, now.operands, now.results))
    kernel = kernel_of(made)
    nbytes = kernel.nbytes * now.nbytes // max(1, call.nbytes)
    write_kernel(made, replace(kernel, flops=kernel.flops // parts, nbytes=nbytes))


def suit_rule(op: ir.Operation, made: ir.Operation, factor: int, parts: int) -> None:
    """The same for the rule of a call that works on a part of one factor: a micro-batch."""
    rule = rule_of(op)
    rule = replace(rule, factor_sizes=tuple(n // parts if f == factor else n for f, n in enumerate(rule.factor_sizes)))
    made.attributes[RULE] = rule_attribute(rule, op.context)
    kernel = kernel_of(op)
    held = tuple(replace(m, nbytes=m.nbytes // (parts if factor in m.factors else 1)) for m in kernel.held)
    write_kernel(made, renumbered(replace(kernel, held=held), rule))
