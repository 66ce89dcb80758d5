"""Gathers and scatters whose indices count along a dimension, rewritten so that it is seen: one look-up per example.

Owns what counts, and the rewriting. `logits[jnp.arange(n), labels]` becomes what `jnp.take_along_axis` gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect.constants import is_zeros
from rhino.dialect.functions import walk

_JOIN = "stablehlo.concatenate"
# Of numbers that are counted from zero: where these are asked whether they are negative, this operand is taken.
_TAKEN = {"LT": 2, "GE": 1}
_MOST = 1 << 16  # elements of a constant that is looked at


def batch_lookups(root: ir.Operation) -> int:
    """Makes batching dimensions of what gathers and scatters below an operation count. Returns how many it changed."""
    return sum(_batched(op) for op in [op for op in walk(root) if op.name in ("stablehlo.gather", "stablehlo.scatter")])


def _batched(op: ir.Operation) -> bool:
    scatter = op.name == "stablehlo.scatter"
    given = (len(op.operands) - 1) // 2 if scatter else 1
    indices = op.operands[given]
    name = "scatter_dimension_numbers" if scatter else "dimension_numbers"
    kind = stablehlo.ScatterDimensionNumbers if scatter else stablehlo.GatherDimensionNumbers
    numbers = kind(op.attributes[name])
    vector = numbers.index_vector_dim
    join = indices.owner.operation if isinstance(indices, ir.OpResult) else None
    if join is None or join.name != _JOIN or ir.IntegerAttr(join.attributes["dimension"]).value != vector:
        return False
    dropped, where = _numbers(numbers, scatter)
    batches = dict(_batches(numbers, scatter))
    shape, kept, kept_parts = op.operands[0].type.shape, [], []
    at = 0
    for part in join.operands:
        width = part.type.shape[vector]
        dims = where[at : at + width]
        counted = counts(part) if width == 1 and dims[0] in dropped else None
        free = counted not in (vector, *batches.values())
        if counted is not None and free and shape[dims[0]] == indices.type.shape[counted]:
            batches[dims[0]] = counted
        else:
            kept += dims
            kept_parts.append(part)
        at += width
    if len(kept) == len(where) or not kept:
        return False
    with op.context, op.location, ir.InsertionPoint(op):
        dimension = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), vector)
        op.operands[given] = kept_parts[0] if len(kept_parts) == 1 else stablehlo.ConcatenateOp(kept_parts, dimension)
        op.attributes[name] = _with(numbers, scatter, [d for d in dropped if d not in batches], batches, kept)
        op.attributes["indices_are_sorted"] = ir.BoolAttr.get(False)
    return True


def _numbers(numbers: Any, scatter: bool) -> tuple[list[int], list[int]]:
    """The dimensions of the operand of which one element is taken, and the one that each index is of."""
    if scatter:
        return list(numbers.inserted_window_dims), list(numbers.scattered_dims_to_operand_dims)
    return list(numbers.collapsed_slice_dims), list(numbers.start_index_map)


def _batches(numbers: Any, scatter: bool) -> Sequence[tuple[int, int]]:
    if scatter:
        return list(zip(numbers.input_batching_dims, numbers.scatter_indices_batching_dims, strict=True))
    return list(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True))


def _with(numbers: Any, scatter: bool, dropped: list[int], batches: dict[int, int], where: list[int]) -> Any:
    of, along = sorted(batches), [batches[d] for d in sorted(batches)]
    if scatter:
        return stablehlo.ScatterDimensionNumbers.get(
            list(numbers.update_window_dims), dropped, of, along, where, numbers.index_vector_dim
        )
    return stablehlo.GatherDimensionNumbers.get(
        list(numbers.offset_dims), dropped, of, along, where, numbers.index_vector_dim
    )


def counts(value: ir.Value) -> int | None:
    """The dimension along which an integer tensor is 0, 1, 2, .. and the same along all others; None if unknown."""
    if not isinstance(value, ir.OpResult):
        return None
    op = value.owner.operation
    shape = list(value.type.shape)
    element = value.type.element_type
    if op.name == "stablehlo.iota":
        dim = int(ir.IntegerAttr(op.attributes["iota_dimension"]).value)
        return dim if _holds(element, shape[dim]) else None
    if op.name == "stablehlo.constant":
        return _counts_constant(op, shape)
    if op.name == "stablehlo.select":
        taken = _TAKEN.get(_asks_negative(op.operands[0]))
        return counts(op.operands[taken]) if taken is not None else None
    if op.name not in ("stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.convert"):
        return None
    of = op.operands[0]
    found = counts(of)
    if found is None:
        return None
    given = list(of.type.shape)
    if op.name == "stablehlo.convert":
        return found if _holds(element, given[found]) else None
    if op.name == "stablehlo.broadcast_in_dim":
        at = int(list(ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"]))[found])
        return at if shape[at] == given[found] else None
    if [n for n in given if n != 1] != [n for n in shape if n != 1] or given[found] == 1:
        return None
    nth = sum(n != 1 for n in given[:found])
    return [i for i, n in enumerate(shape) if n != 1][nth]


def _holds(element: ir.Type, size: int) -> bool:
    """Whether an element type has all numbers below a size, and does not begin again."""
    return isinstance(element, ir.IntegerType) and size <= 1 << (element.width - 1)


def _counts_constant(op: ir.Operation, shape: list[int]) -> int | None:
    long = [i for i, n in enumerate(shape) if n != 1]
    if len(long) != 1 or shape[long[0]] > _MOST or not isinstance(op.results[0].type.element_type, ir.IntegerType):
        return None
    try:
        values = np.array(ir.DenseIntElementsAttr(op.attributes["value"]))
    except (ValueError, TypeError):  # a resource, whose elements are elsewhere
        return None
    return long[0] if np.array_equal(values.reshape(-1), np.arange(shape[long[0]])) else None


def _asks_negative(value: ir.Value) -> str:
    """The direction of a comparison of what counts with zero, or nothing."""
    if not isinstance(value, ir.OpResult) or value.owner.operation.name != "stablehlo.compare":
        return ""
    op = value.owner.operation
    if counts(op.operands[0]) is None or not _is_zero(op.operands[1]):
        return ""
    return stablehlo.ComparisonDirectionAttr(op.attributes["comparison_direction"]).value


def _is_zero(value: ir.Value) -> bool:
    op = value.owner.operation if isinstance(value, ir.OpResult) else None
    if op is not None and op.name == "stablehlo.broadcast_in_dim":
        return _is_zero(op.operands[0])
    return op is not None and op.name == "stablehlo.constant" and is_zeros(op)
