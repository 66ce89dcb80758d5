"""One operation on sums over the batch made again for several local sums, which are a dimension in front.

Owns what that does to attributes, at the current insertion point. Which values have the dimension
`rhino.microbatch.local_sums` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect.attributes import RhinoSums
from rhino.dialect.constants import splat
from rhino.dialect.functions import attributes_of
from rhino.ir.microbatch.ops import reshaped
from rhino.microbatch import OpCopy, Split

Numbers = list[int]


def leading(kind: Any, count: int) -> Any:
    """A tensor type with a dimension of `count` in front."""
    return ir.RankedTensorType.get([count, *kind.shape], kind.element_type)


def repeated(value: Any, count: int) -> Any:
    """A value `count` times, along a dimension in front; of zeros that are zeros."""
    wide = leading(value.type, count)
    return stablehlo.BroadcastInDimOp(wide, value, _array(range(1, len(wide.shape)))).result


def make_local(op: Any, copy: OpCopy, operands: Sequence[Any], given: Sequence[bool], count: int) -> Any:
    """The result of an op as `count` local sums.

    Args:
      operands: in their forms; those `given` are local sums already.
    """
    split = {i: form for i, (_, form) in enumerate(copy.operands) if isinstance(form, Split)}
    if split:
        return _MAKING[op.name](op, split, operands, given, count)
    wide = [
        v if local or _is_shared(op, i) else repeated(v, count)
        for i, (v, local) in enumerate(zip(operands, given, strict=True))
    ]
    if op.name in _INDICES and len(wide) > (first := _INDICES[op.name]):
        wide.insert(first, splat(wide[first].type, 0))
    new = _clone(op, wide, count)
    if op.name in _SHIFTED:
        _SHIFTED[op.name](op, new, count)
    return new.results[0]


def _clone(op: Any, operands: Sequence[Any], count: int) -> Any:
    """The op with other operands, and its result as local sums."""
    kind = leading(op.results[0].type, count)
    if len(operands) > len(op.operands):
        return ir.Operation.create(op.name, results=[kind], operands=list(operands), attributes=attributes_of(op))
    new = op.clone()
    for i, value in enumerate(operands):
        new.operands[i] = value
    new.results[0].set_type(kind)
    return new


def _is_shared(op: Any, slot: int) -> bool:
    """Whether an operand is the same for all local sums: where something is, what is chosen, what a sum starts from."""
    if op.name == "stablehlo.select":
        return slot == 0 and not op.operands[0].type.shape
    return slot >= _INDICES.get(op.name, slot + 1) or (slot == 1 and op.name in _FROM)


# Operations on local sums whose attributes name dimensions: the original, its copy, and how many local sums.


def _transpose(op: Any, new: Any, count: int) -> None:
    new.attributes["permutation"] = _array([0, *_further(op, "permutation")])


def _broadcast(op: Any, new: Any, count: int) -> None:
    new.attributes["broadcast_dimensions"] = _array([0, *_further(op, "broadcast_dimensions")])


def _slice(op: Any, new: Any, count: int) -> None:
    for name, first in (("start_indices", 0), ("limit_indices", count), ("strides", 1)):
        new.attributes[name] = _array([first, *op.attributes[name]])


def _window(op: Any, new: Any, count: int) -> None:
    new.attributes["slice_sizes"] = _array([count, *op.attributes["slice_sizes"]])


def _along(op: Any, new: Any, count: int) -> None:
    new.attributes["dimensions"] = _array(_further(op, "dimensions"))


def _joined(op: Any, new: Any, count: int) -> None:
    dimension = op.attributes["dimension"]
    new.attributes["dimension"] = ir.IntegerAttr.get(dimension.type, dimension.value + 1)


def _pad(op: Any, new: Any, count: int) -> None:
    for name in ("edge_padding_low", "edge_padding_high", "interior_padding"):
        new.attributes[name] = _array([0, *op.attributes[name]])


# From which operand on they say where; those whose second one is a number to start from or to fill with.
_INDICES = {"stablehlo.dynamic_slice": 1, "stablehlo.dynamic_update_slice": 2}
_FROM = ("stablehlo.reduce", "stablehlo.pad")
_SHIFTED: dict[str, Callable[[Any, Any, int], None]] = {
    "stablehlo.transpose": _transpose,
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.slice": _slice,
    "stablehlo.dynamic_slice": _window,
    "stablehlo.reverse": _along,
    "stablehlo.reduce": _along,
    "stablehlo.concatenate": _joined,
    "stablehlo.pad": _pad,
}


# Operations that sum examples: of each operand the dimension with these is taken apart, groups first.


def _dot(op: Any, split: dict[int, Split], operands: Sequence[Any], given: Sequence[bool], count: int) -> Any:
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    at = [split[0].dim, split[1].dim]
    batching = [numbers.lhs_batching_dimensions, numbers.rhs_batching_dimensions]
    contracted = [numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions]
    # The batch is contracted: its groups become a batching dimension.
    new = _clone(op, [_grouped(v, d, count) for v, d in zip(operands, at, strict=True)], count)
    new.attributes["dot_dimension_numbers"] = stablehlo.DotDimensionNumbers.get(
        *([d, *_apart(dims, d)] for dims, d in zip(batching, at, strict=True)),
        *(_apart(dims, d) for dims, d in zip(contracted, at, strict=True)),
    )
    return _marked(new, count)


def _reduce(op: Any, split: dict[int, Split], operands: Sequence[Any], given: Sequence[bool], count: int) -> Any:
    dim = split[0].dim
    dims = list(op.attributes["dimensions"])
    new = _clone(op, [_grouped(operands[0], dim, count), operands[1]], count)
    new.attributes["dimensions"] = _array(_apart(dims, dim))
    # The groups come where they were among the dimensions that are kept.
    place = sum(d not in dims for d in range(dim))
    kept = list(op.results[0].type.shape)
    element = op.results[0].type.element_type
    new.results[0].set_type(ir.RankedTensorType.get([*kept[:place], count, *kept[place:]], element))
    made = _marked(new, count)
    if not place:
        return made
    order = [place, *(d for d in range(len(kept) + 1) if d != place)]
    return stablehlo.TransposeOp(made, _array(order)).result


def _scatter(op: Any, split: dict[int, Split], operands: Sequence[Any], given: Sequence[bool], count: int) -> Any:
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    into = operands[0] if given[0] else repeated(operands[0], count)
    indices, updates = split[1].dim, split[2].dim
    new = _clone(op, [into, _grouped(operands[1], indices, count), _grouped(operands[2], updates, count)], count)
    vector = numbers.index_vector_dim
    new.attributes["scatter_dimension_numbers"] = stablehlo.ScatterDimensionNumbers.get(
        _apart(numbers.update_window_dims, updates),
        [d + 1 for d in numbers.inserted_window_dims],
        [0, *(d + 1 for d in numbers.input_batching_dims)],
        [indices, *_apart(numbers.scatter_indices_batching_dims, indices)],
        [d + 1 for d in numbers.scattered_dims_to_operand_dims],
        vector + (vector > indices),
    )
    return _marked(new, count)


_MAKING: dict[str, Callable[..., Any]] = {
    "stablehlo.dot_general": _dot,
    "stablehlo.reduce": _reduce,
    "stablehlo.scatter": _scatter,
}


def _grouped(value: Any, dim: int, count: int) -> Any:
    """The examples along a dimension as groups times examples of a group."""
    shape = list(value.type.shape)
    return reshaped(value, [*shape[:dim], count, shape[dim] // count, *shape[dim + 1 :]])


def _apart(dims: Sequence[int], dim: int) -> Numbers:
    """Dimensions as they are called when `dim` is two: the first are groups, and it is the second."""
    return [d + (d >= dim) for d in dims]


def _further(op: Any, name: str) -> Numbers:
    return [d + 1 for d in op.attributes[name]]


def _marked(new: Any, count: int) -> Any:
    RhinoSums.attach(new, count)
    return new.results[0]


def _array(numbers: Sequence[int] | range) -> Any:
    return ir.DenseI64ArrayAttr.get(list(numbers))
