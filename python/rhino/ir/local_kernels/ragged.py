"""The local program of a ragged product: which of a device's rows are in which of its groups.

Owns that arithmetic on sizes of groups. Rows that are in no group of the device are zero in its results, and counted in
no sum: what it makes is exact, whatever the sizes are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect.constants import splat
from rhino.ir.kernel_calls import read_call, rule_of
from rhino.ir.local_kernels.local import Local, same_call
from rhino.kernels.ragged import Ragged, read


def ragged(local: Local) -> Sequence[Any]:
    """The same product of the device's rows with its groups.

    With starts s[i] and ends e[i] of all groups, rows [o, o + n) hold rows [s[i] - o, e[i] - o) of group i, cut off at
    0 and n. Rows in front of the first group of the device are given to that group, and set to zero where it counts.
    """
    factors = read(read_call(local.op))
    begins = _begins(local, factors)
    if not begins:
        return same_call(local)
    lhs, rhs, sizes = local.operands
    ends = _running_sums(sizes)
    starts = stablehlo.SubtractOp(ends, sizes).result
    if "r" in begins:
        rows = lhs.type.shape[factors.lhs.index("r")]
        starts, ends = (_within(value, begins["r"], rows) for value in (starts, ends))
        sizes = stablehlo.SubtractOp(ends, starts).result
    if "g" not in begins:
        return same_call(replace(local, operands=[lhs, rhs, sizes]))

    by_matrix = "g" in factors.rhs
    groups = rhs.type.shape[factors.rhs.index("g")] if by_matrix else local.results[0].shape[factors.result.index("g")]
    first = _slice(starts, begins["g"], 1)
    mine = _slice(sizes, begins["g"], groups)
    sizes = stablehlo.AddOp(mine, _in_front(first, mine.type)).result
    if by_matrix:
        (made,) = same_call(replace(local, operands=[lhs, rhs, sizes]))
        return [_from(made, factors.result, first, factors)]
    lhs, rhs = _from(lhs, factors.lhs, first, factors), _from(rhs, factors.rhs, first, factors)
    return same_call(replace(local, operands=[lhs, rhs, sizes]))


def _begins(local: Local, factors: Ragged) -> dict[str, Any]:
    """Where the device's rows ("r") and groups ("g") begin, of those that are split."""
    rule = rule_of(local.op)
    numbers = {
        name: factor
        for names, mapping in zip(
            (factors.lhs, factors.rhs, factors.result), (*rule.operands[:2], *rule.results), strict=True
        )
        for name, (factor,) in zip(names, mapping, strict=True)
    }
    return {name: local.begins[f] for name in "rg" if (f := numbers.get(name)) in local.begins and f is not None}


def _integers(shape: Sequence[int], like: Any) -> Any:
    return ir.RankedTensorType.get(list(shape), like.type.element_type)


def _running_sums(sizes: Any) -> Any:
    """Along the last dimension, each element and all before it."""
    *outer, count = sizes.type.shape
    ones = [1] * len(outer)
    scalar = _integers([], sizes)
    i64 = ir.IntegerType.get_signless(64)
    padding = ir.DenseElementsAttr.get(
        [ir.IntegerAttr.get(i64, n) for n in (*[0] * 2 * len(outer), count - 1, 0)],
        ir.RankedTensorType.get([len(outer) + 1, 2], i64),
    )
    op = stablehlo.ReduceWindowOp(
        [sizes.type], [sizes], [splat(scalar, 0)], ir.DenseI64ArrayAttr.get([*ones, count]), padding=padding
    ).operation
    block = op.regions[0].blocks.append(scalar, scalar)
    with ir.InsertionPoint(block):
        stablehlo.ReturnOp([stablehlo.AddOp(*block.arguments).result])
    return op.results[0]


def _within(places: Any, begin: Any, count: int) -> Any:
    """Places in the whole as places among `count` rows from `begin` on, cut off at both ends."""
    scalar = _integers([], places)
    begin = begin if begin.type == scalar else stablehlo.ConvertOp(scalar, begin).result
    offset = stablehlo.BroadcastInDimOp(places.type, begin, ir.DenseI64ArrayAttr.get([])).result
    moved = stablehlo.SubtractOp(places, offset).result
    return stablehlo.ClampOp(splat(scalar, 0), moved, splat(scalar, count)).result


def _slice(values: Any, begin: Any, count: int) -> Any:
    """Along the last dimension, so many elements from a place on."""
    *outer, _ = values.type.shape
    zero = splat(begin.type, 0)
    return stablehlo.DynamicSliceOp(
        values, [*[zero] * len(outer), begin], ir.DenseI64ArrayAttr.get([*outer, count])
    ).result


def _in_front(first: Any, kind: Any) -> Any:
    """One element along the last dimension, and zeros behind it."""
    rank = len(kind.shape)
    none = [0] * rank
    high = [*none[1:], kind.shape[-1] - 1]
    return stablehlo.PadOp(
        first, splat(_integers([], first), 0), *(ir.DenseI64ArrayAttr.get(n) for n in (none, high, none))
    ).result


def _from(value: Any, names: Sequence[str], first: Any, factors: Ragged) -> Any:
    """A tensor with zeros in its rows before `first`, which has a number for each list of sizes."""
    counted = _integers(value.type.shape, first)
    outer = factors.sizes[:-1]
    bound = stablehlo.ReshapeOp(_integers(first.type.shape[:-1], first), first).result
    bound = stablehlo.BroadcastInDimOp(counted, bound, ir.DenseI64ArrayAttr.get([names.index(f) for f in outer])).result
    row = stablehlo.IotaOp(counted, names.index("r")).result
    kept = stablehlo.CompareOp(row, bound, stablehlo.ComparisonDirectionAttr.get("GE")).result
    return stablehlo.SelectOp(kept, value, splat(value.type, 0)).result
