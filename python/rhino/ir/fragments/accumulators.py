"""What the accumulators of a micro-batch loop in fragments are: added up, the largest, or written row by row.

Owns reading that, and what they start with, out of the fragments. Changes nothing.
"""

from __future__ import annotations

from typing import Any

from jaxlib.mlir import ir

from rhino.dialect.constants import is_zeros
from rhino.dialect.functions import owner_of
from rhino.ir.diagnostics import PassError
from rhino.program.operations import COMBINERS

_WRITE = "stablehlo.dynamic_update_slice"
# What an accumulator's last operation says about how accumulators of several replicas come together.
_KINDS = {**COMBINERS, _WRITE: "write"}
_THROUGH = ("stablehlo.reshape", "stablehlo.convert", "stablehlo.transpose", "sdy.sharding_constraint")


def _maker(body: Any, i: int) -> tuple[Any, int]:
    """The fragment that makes result i of the micro-batch function, and which of its results that is."""
    block = body.regions[0].blocks[0]
    value = ir.OpResult(block.operations[len(block.operations) - 1].operands[i])
    return value.owner, value.result_number


def stage_of(body: Any, i: int) -> int:
    """The stage of the accumulator that is result i of the micro-batch function."""
    return int(ir.IntegerAttr(_maker(body, i)[0].attributes["stage_id"]).value)


def kind_of(body: Any, i: int) -> str:
    """How the accumulator that is result i comes together, by the last operation on it before it was replicated."""
    fragment, number = _maker(body, i)
    block = fragment.regions[0].blocks[0]
    value = block.operations[len(block.operations) - 1].operands[number]
    manual = value.owner
    inner = manual.regions[0].blocks[0]
    position = ir.OpResult(value).result_number
    value = inner.operations[len(inner.operations) - 1].operands[position]
    op = fragment
    while (owner := owner_of(value)) is not None:
        op = owner
        if op.name in _THROUGH:
            value = op.operands[0]
        elif op.name == "stablehlo.while":
            last = op.regions[1].blocks[0]
            value = last.operations[len(last.operations) - 1].operands[ir.OpResult(value).result_number]
        else:
            break
    if op.name not in _KINDS:
        raise PassError(op, f"an accumulator ends in '{op.name}', which does not say how replicas come together")
    return "add" if op.name == _WRITE and _adds_to_row(op) else _KINDS[op.name]


def _adds_to_row(write: Any) -> bool:
    """Whether what is written is the row that was there and something more, as rhino-accumulate-in-loops leaves it."""
    made = _behind(write.operands[1])
    if made is None or made.name != "stablehlo.add":
        return False
    rows = [row for row in map(_behind, made.operands) if row is not None and row.name == "stablehlo.dynamic_slice"]
    return any(row.operands[0] == write.operands[0] for row in rows)


def _behind(value: Any) -> Any:
    """The operation that makes a value, but for changes of its form; None for an argument."""
    op = owner_of(value)
    while op is not None and op.name in _THROUGH:
        op = owner_of(op.operands[0])
    return op


def starts_as_zeros(value: Any) -> bool:
    """Whether a fragment makes a value as a constant of zeros."""
    maker = owner_of(value)
    if maker is None or maker.name != "mpmd.fragment":
        return False
    block = maker.regions[0].blocks[0]
    op = _behind(block.operations[len(block.operations) - 1].operands[ir.OpResult(value).result_number])
    while op is not None and op.name == "stablehlo.broadcast_in_dim":
        op = _behind(op.operands[0])
    return op is not None and is_zeros(op)
