"""Calls of kernels that work on less: configuration, costs and rule made to suit.

Owns this rewriting of a copy of a call.
"""

from __future__ import annotations

from dataclasses import replace

from jaxlib.mlir import ir

from rhino.dialect.attributes import RhinoKernel
from rhino.ir.kernel_calls import (
    CUSTOM_CALL,
    RULE,
    kernel_of,
    read_call,
    rule_attribute,
    rule_of,
    shared_sums,
    spelled_numbers,
    write_config,
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
    data = kernel_of(made)
    nbytes = data["bytes"] * now.nbytes // max(1, call.nbytes)
    RhinoKernel.attach(made, {**data, "flops": data["flops"] // parts, "bytes": nbytes})


def suit_rule(op: ir.Operation, made: ir.Operation, factor: int, parts: int) -> None:
    """The same for the rule of a call that works on a part of one factor: a micro-batch."""
    rule = rule_of(op)
    rule = replace(rule, factor_sizes=tuple(n // parts if f == factor else n for f, n in enumerate(rule.factor_sizes)))
    made.attributes[RULE] = rule_attribute(rule, op.context)
    numbers, data = spelled_numbers(rule), kernel_of(op)
    changed = {
        "sums": shared_sums(rule),
        "ordered": [numbers[f] for f in data.get("ordered", ()) if f in numbers],
        "held": [
            {
                "bytes": held["bytes"] // (parts if factor in held["factors"] else 1),
                "factors": [numbers[f] for f in held["factors"] if f in numbers],
            }
            for held in data.get("held", ())
        ],
    }
    data = {name: value for name, value in data.items() if name not in changed}
    RhinoKernel.attach(made, {**data, **{name: value for name, value in changed.items() if value}})
