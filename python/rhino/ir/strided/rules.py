"""How single dimensions flow through the operations that number them.

Owns one rule per kind of operation; an operation without one needs all dimensions whole. Changes no IR.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect.sdy import SHARDING
from rhino.ir.strided.flow import StridedFlow
from rhino.ir.strided.program import LOOP, RETURN, OpRecord, StridedProgram
from rhino.program.operations import BRANCHES

# Whatever they make can be reshaped where it is made.
_SOURCES = frozenset(f"stablehlo.{name}" for name in "constant iota rng rng_bit_generator create_token".split())

WINDOW_ATTRIBUTES = ("window_dimensions", "window_strides", "base_dilations", "window_dilations")


def trace(program: StridedProgram) -> StridedFlow:
    """Gathers the facts about all dimensions in one pass over the records."""
    flow = StridedFlow(program)
    for record in program.records:
        if SHARDING in record.op.attributes:
            flow.block_all(record.results, f"a sharding is given at {record.name}")
        if record.elementwise or record.name in _SOURCES or record.name in (LOOP, RETURN) or record.name in BRANCHES:
            continue
        rule = _RULES.get(record.name)
        if rule is not None:
            rule(flow, record)
        else:
            what = record.name
            if what == "stablehlo.custom_call":
                what = f"custom call '{record.op.attributes['call_target_name'].value}'"
            flow.block_all((*record.operands, *record.results, *record.inner), f"{what} reads or makes it whole")
    return flow


def _transpose(flow: StridedFlow, r: OpRecord) -> None:
    for j, i in enumerate(flow.ints(r.op, "permutation")):
        flow.same(r.operands[0], i, r.results[0], j)


def _broadcast(flow: StridedFlow, r: OpRecord) -> None:
    operand, result = flow.program.shapes[r.operands[0]], flow.program.shapes[r.results[0]]
    for i, j in enumerate(flow.ints(r.op, "broadcast_dimensions")):
        if operand[i] == result[j]:
            flow.same(r.operands[0], i, r.results[0], j)


def _reduce(flow: StridedFlow, r: OpRecord) -> None:
    count = len(r.results)
    gone = flow.ints(r.op, "dimensions")
    kept = [i for i in range(len(flow.program.shapes[r.operands[0]])) if i not in gone]
    for operand, result in zip(r.operands[:count], r.results, strict=True):
        for j, i in enumerate(kept):
            flow.same(operand, i, result, j)
        if operand != r.operands[0]:
            for i in gone:
                flow.same(r.operands[0], i, operand, i)
    if count > 1:  # argmax and the like: the order of elements counts, and one index is made of them
        for i in gone:
            flow.block(r.operands[0], i, "stablehlo.reduce with several results reads it whole")


def _reduce_window(flow: StridedFlow, r: OpRecord) -> None:
    count = len(r.results)
    shape = flow.program.shapes[r.operands[0]]
    padded = (
        flow.attribute(r.op, "padding", lambda a: np.array(ir.DenseIntElementsAttr(a)).any(axis=1).tolist())
        if "padding" in r.op.attributes
        else [False] * len(shape)
    )
    for dim in range(len(shape)):
        plain = not padded[dim] and all(flow.ints(r.op, n)[dim] == 1 for n in WINDOW_ATTRIBUTES if n in r.op.attributes)
        for v in (*r.operands[:count], *r.results):
            if plain:
                flow.same(r.operands[0], dim, v, dim)
            else:
                flow.block(v, dim, "a window moves along it")


def dot_dims(flow: StridedFlow, op: Any) -> tuple[list[int], list[int], list[int], list[int]]:
    """Batching dimensions of both sides of a dot_general, and contracting dimensions of both."""

    def read(attribute: Any) -> Any:
        n = stablehlo.DotDimensionNumbers(attribute)
        return (
            list(n.lhs_batching_dimensions),
            list(n.rhs_batching_dimensions),
            list(n.lhs_contracting_dimensions),
            list(n.rhs_contracting_dimensions),
        )

    found: tuple[list[int], list[int], list[int], list[int]] = flow.attribute(op, "dot_dimension_numbers", read)
    return found


def _dot(flow: StridedFlow, r: OpRecord) -> None:
    left, right = r.operands
    (out,) = r.results
    left_batch, right_batch, left_sum, right_sum = dot_dims(flow, r.op)
    at = 0
    for i, j in zip(left_batch, right_batch, strict=True):
        flow.same(left, i, out, at)
        flow.same(right, j, out, at)
        at += 1
    for operand, batch, summed in ((left, left_batch, left_sum), (right, right_batch, right_sum)):
        free = [i for i in range(len(flow.program.shapes[operand])) if i not in batch and i not in summed]
        for i in free:
            flow.same(operand, i, out, at)
            at += 1
        if operand in flow.program.weights:
            flow.contracted += [flow.node(operand, i) for i in (*free, *summed)]
    for i, j in zip(left_sum, right_sum, strict=True):
        flow.same(left, i, right, j)


def factor_blocks(a: tuple[int, ...], b: tuple[int, ...]) -> Iterator[tuple[list[int], list[int]]]:
    """The smallest runs of dimensions of two shapes that hold the same elements; dimensions of size 1 are left out."""
    left = [i for i, n in enumerate(a) if n != 1]
    right = [j for j, n in enumerate(b) if n != 1]
    while left:
        mine, theirs = [left.pop(0)], [right.pop(0)]
        m, n = a[mine[0]], b[theirs[0]]
        while m != n:
            if m < n:
                mine.append(left.pop(0))
                m *= a[mine[-1]]
            else:
                theirs.append(right.pop(0))
                n *= b[theirs[-1]]
        yield mine, theirs


def _reshape(flow: StridedFlow, r: OpRecord) -> None:
    (operand,), (result,) = r.operands, r.results
    a, b = flow.program.shapes[operand], flow.program.shapes[result]
    if 0 in a:
        return
    for mine, theirs in factor_blocks(a, b):
        if len(mine) == len(theirs) == 1:
            flow.same(operand, mine[0], result, theirs[0])
        else:
            strides = prod(a[i] for i in mine[1:]), prod(b[j] for j in theirs[1:])
            flow.reshapes.append((flow.node(operand, mine[0]), strides[0], flow.node(result, theirs[0]), strides[1]))


def _slice(flow: StridedFlow, r: OpRecord) -> None:
    (operand,), (result,) = r.operands, r.results
    starts, strides = flow.ints(r.op, "start_indices"), flow.ints(r.op, "strides")
    before, after = flow.program.shapes[operand], flow.program.shapes[result]
    for dim, (whole, part) in enumerate(zip(before, after, strict=True)):
        if whole == part:
            flow.same(operand, dim, result, dim)
        elif strides[dim] == 1:
            flow.piece(operand, dim, starts[dim], result)
        else:
            flow.block(operand, dim, f"a slice takes one of every {strides[dim]} elements")


def _pad(flow: StridedFlow, r: OpRecord) -> None:
    operand, (result,) = r.operands[0], r.results
    low, high = flow.ints(r.op, "edge_padding_low"), flow.ints(r.op, "edge_padding_high")
    interior = flow.ints(r.op, "interior_padding")
    for dim in range(len(low)):
        if low[dim] == high[dim] == interior[dim] == 0:
            flow.same(operand, dim, result, dim)
        elif low[dim] >= 0 and high[dim] >= 0 and interior[dim] == 0:
            flow.piece(result, dim, low[dim], operand)
        else:
            flow.block(result, dim, "elements are padded in between or cut off by a pad")
            flow.block(operand, dim, "elements are padded in between or cut off by a pad")


def _concatenate(flow: StridedFlow, r: OpRecord) -> None:
    along = r.op.attributes["dimension"].value
    (result,) = r.results
    start = 0
    for operand in r.operands:
        shape = flow.program.shapes[operand]
        for dim in range(len(shape)):
            if dim != along:
                flow.same(operand, dim, result, dim)
            elif shape[dim]:
                flow.piece(result, dim, start, operand)
        start += shape[along]


def _dynamic_slice(flow: StridedFlow, r: OpRecord) -> None:
    _window(flow, r.operands[0], r.results[0], r.operands[1:], "dynamic_slice")


def _dynamic_update_slice(flow: StridedFlow, r: OpRecord) -> None:
    whole, part, starts = r.operands[0], r.operands[1], r.operands[2:]
    for dim in range(len(starts)):
        flow.same(whole, dim, r.results[0], dim)
    _window(flow, whole, part, starts, "dynamic_update_slice")


def _window(flow: StridedFlow, whole: int, part: int, starts: tuple[int, ...], what: str) -> None:
    """`part` is the window of `whole` at given starts: all of a dimension, a known part of it, or an unknown one."""
    shapes = flow.program.shapes
    for dim, start in enumerate(starts):
        if shapes[whole][dim] == shapes[part][dim]:
            flow.same(whole, dim, part, dim)
        elif (known := flow.constant(start)) is not None:
            flow.piece(whole, dim, min(max(known, 0), shapes[whole][dim] - shapes[part][dim]), part)
        else:
            flow.block(whole, dim, f"a {what} moves along it")


def _sorted(flow: StridedFlow, r: OpRecord) -> None:
    flow.block(r.results[0], r.op.attributes["dimension"].value, "it is sorted")


def _constraint(flow: StridedFlow, r: OpRecord) -> None:
    (operand,), (result,) = r.operands, r.results
    for dim in range(len(flow.program.shapes[operand])):
        flow.same(operand, dim, result, dim)
    flow.block_all(r.results, f"a sharding is given by {r.name}")


def _reverse(flow: StridedFlow, r: OpRecord) -> None:
    for dim in flow.ints(r.op, "dimensions"):
        flow.block(r.results[0], dim, "it is reversed")


def gather_dims(flow: StridedFlow, op: Any) -> Any:
    """The dimension numbers of a gather."""
    return flow.attribute(op, "dimension_numbers", stablehlo.GatherDimensionNumbers)


def scatter_dims(flow: StridedFlow, op: Any) -> Any:
    """The dimension numbers of a scatter."""
    return flow.attribute(op, "scatter_dimension_numbers", stablehlo.ScatterDimensionNumbers)


def _gather(flow: StridedFlow, r: OpRecord) -> None:
    n = gather_dims(flow, r.op)
    fixed = [*n.collapsed_slice_dims, *n.operand_batching_dims]
    _indexed(flow, r.operands[0], r.operands[1], r.results[0], list(n.offset_dims), fixed,
             list(n.operand_batching_dims), list(n.start_indices_batching_dims), n.index_vector_dim,
             list(n.start_index_map), "gather")  # fmt: skip


def _scatter(flow: StridedFlow, r: OpRecord) -> None:
    n = scatter_dims(flow, r.op)
    count = len(r.results)
    inputs, indices, updates = r.operands[:count], r.operands[count], r.operands[count + 1 :]
    fixed = [*n.inserted_window_dims, *n.input_batching_dims]
    for given, update, result in zip(inputs, updates, r.results, strict=True):
        for dim in range(len(flow.program.shapes[given])):
            flow.same(given, dim, result, dim)
        _indexed(flow, given, indices, update, list(n.update_window_dims), fixed, list(n.input_batching_dims),
                 list(n.scatter_indices_batching_dims), n.index_vector_dim,
                 list(n.scattered_dims_to_operand_dims), "scatter")  # fmt: skip


def _indexed(
    flow: StridedFlow,
    whole: int,
    indices: int,
    window: int,
    offsets: list[int],
    fixed: list[int],
    whole_batch: list[int],
    indices_batch: list[int],
    vector: int,
    indexed: list[int],
    what: str,
) -> None:
    """Gather and scatter alike: `window` has dimensions of `whole` at `offsets`, and those of the indices elsewhere."""
    shapes = flow.program.shapes
    inside = [dim for dim in range(len(shapes[whole])) if dim not in fixed]
    for dim, offset in zip(inside, offsets, strict=True):
        if dim not in indexed and shapes[whole][dim] == shapes[window][offset]:
            flow.same(whole, dim, window, offset)
        else:
            flow.block(whole, dim, f"a {what} indexes it")
            flow.block(window, offset, f"a {what} indexes it")
    for dim in fixed:
        if dim not in whole_batch:
            flow.block(whole, dim, f"a {what} indexes it")
    outer = [dim for dim in range(len(shapes[window])) if dim not in offsets]
    positions = [dim for dim in range(len(shapes[indices])) if dim != vector]
    for dim, position in zip(outer, positions, strict=True):
        flow.same(window, dim, indices, position)
    if vector < len(shapes[indices]):
        flow.block(indices, vector, f"a {what} reads it as index")
    for dim, position in zip(whole_batch, indices_batch, strict=True):
        flow.same(whole, dim, indices, position)


_RULES: dict[str, Callable[[StridedFlow, OpRecord], None]] = {
    name if "." in name else f"stablehlo.{name}": rule
    for name, rule in {
        "transpose": _transpose, "broadcast_in_dim": _broadcast, "reduce": _reduce, "dot_general": _dot,
        "reshape": _reshape, "slice": _slice, "pad": _pad, "concatenate": _concatenate,
        "dynamic_slice": _dynamic_slice, "dynamic_update_slice": _dynamic_update_slice, "sort": _sorted,
        "reduce_window": _reduce_window, "reverse": _reverse, "gather": _gather, "scatter": _scatter,
        "sdy.sharding_constraint": _constraint,
    }.items()
}  # fmt: skip
