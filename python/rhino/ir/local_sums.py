"""Operations that make local sums (`rhino.sums`), each as one with the reshapes that group the examples it reads.

Owns their factor rules. A reshape alone would let axes split what it takes apart along its outer factor only: the op
that reads examples as they are may have the local sums on one axis, and the examples of each on others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jaxlib.mlir import ir

from rhino.dialect.attributes import RhinoSums
from rhino.program.data import Graph, Op
from rhino.program.operations import APART

_RESHAPE = "stablehlo.reshape"


def grouping(op: ir.Operation, slot: int) -> tuple[ir.Operation, int] | None:
    """The reshape that groups the examples in an operand of an operation that makes local sums, and their dimension.

    None if none does.
    """
    count = RhinoSums.of(op)
    if count is None:
        return None
    value = op.operands[slot]
    maker = value.owner.operation if isinstance(value, ir.OpResult) else None
    if maker is None or maker.name != _RESHAPE:
        return None
    at = _place(maker.operands[0].type.shape, value.type.shape, count)
    return (maker, at) if at >= 0 else None


def read_local_sums(op: ir.Operation, record: Op, graph: Graph, ids: Mapping[Any, int]) -> None:
    """Has an op that makes local sums read examples before they are grouped; its rule says which factor these are."""
    rule = record.rule
    if rule is None or RhinoSums.name not in op.attributes:
        return
    operands, mappings = list(record.operands), list(rule.operands)
    for slot in range(len(operands)):
        found = grouping(op, slot)
        if found is None:
            continue
        (reshape, at), mapping = found, mappings[slot]
        graph.ops[graph.values[operands[slot]].producer].tag = APART
        operands[slot] = ids[reshape.operands[0]]
        mappings[slot] = (*mapping[:at], (*mapping[at], *mapping[at + 1]), *mapping[at + 2 :])
        record.local = next((f for f in mapping[at] if rule.factor_sizes[f] > 1), -1)
    record.operands, record.rule = tuple(operands), replace(rule, operands=tuple(mappings))


def _place(whole: Sequence[int], apart: Sequence[int], count: int) -> int:
    """The dimension of a shape that another has as two, of which the first is `count`; -1 if that is not so."""
    whole, apart = list(whole), list(apart)
    if len(apart) != len(whole) + 1:
        return -1
    for d, size in enumerate(whole):
        same = whole[:d] == apart[:d] and whole[d + 1 :] == apart[d + 2 :]
        if same and apart[d] == count and size == count * apart[d + 1]:
            return d
    return -1
