"""Windows over one tensor that differ in what lies outside of it, kept apart for XLA's partitioner.

Owns the workaround for a fault of XLA's partitioner, which remembers what it fetched by tensor, layout and window:
`XLA: windows-share-a-filling`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from math import inf

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect.constants import value_of
from rhino.dialect.functions import walk

# What Shardy makes once where two are equal, and XLA for each reader.
_MERGED = frozenset({"stablehlo.constant", "stablehlo.iota", "stablehlo.broadcast_in_dim"})

# Along a dimension: size, stride, padding before and after, dilation of the window and of the tensor.
_Along = tuple[int, int, int, int, int, int]
_PADDING = ("edge_padding_low", "edge_padding_high", "interior_padding")
_WHOLE: _Along = (1, 1, 0, 0, 1, 1)


def keep_fillings_apart(root: ir.Operation) -> None:
    """Gives a window that fills otherwise than an equal one before it, over the same tensor, a tensor of its own."""
    filled: dict[tuple[Hashable, tuple[_Along, ...]], Hashable] = {}
    for op in walk(root):
        for i, window, filling in _windows(op):
            if filled.setdefault((_key(op.operands[i]), window), filling) != filling:
                with op.context, op.location, ir.InsertionPoint(op):
                    op.operands[i] = stablehlo.OptimizationBarrierOp([op.operands[i]]).results[0]


def _windows(op: ir.Operation) -> Iterator[tuple[int, tuple[_Along, ...], Hashable]]:
    """The operands that windows go over: which, the window, and what is outside."""
    if op.name == "stablehlo.pad":
        low, high, inner = (op.attributes[name] for name in _PADDING)
        window = tuple((1, 1, a, b, 1, n + 1) for a, b, n in zip(low, high, inner, strict=True))
        yield 0, window, _key(op.operands[1])
    elif op.name == "stablehlo.reduce_window":
        window = _form(op, list(op.attributes["window_dimensions"]))
        for i in range(len(op.results)):
            yield i, window, _key(op.operands[len(op.results) + i])
    elif op.name == "stablehlo.select_and_scatter":
        sizes = list(op.attributes.get("window_dimensions", [])) or [1] * len(op.operands[0].type.shape)
        # Of the greatest no filling is taken: a maximum pool's gradient shares. XLA: windows-share-a-filling
        directions = [str(inner.attributes.get("comparison_direction")) for inner in op.regions[0].blocks[0]]
        greatest = any("GE" in direction for direction in directions)
        yield 0, _form(op, sizes), _number(op, -inf) if greatest else "what is not selected"
    elif op.name == "stablehlo.convolution":
        numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
        sizes = [op.operands[1].type.shape[dim] for dim in numbers.kernel_spatial_dimensions]
        along = dict(zip(numbers.input_spatial_dimensions, _form(op, sizes), strict=True))
        yield 0, tuple(along.get(dim, _WHOLE) for dim in range(len(op.operands[0].type.shape))), _number(op, 0.0)


def _form(op: ir.Operation, sizes: list[int]) -> tuple[_Along, ...]:
    """The window of these sizes, with what else the operation says of it."""

    def of(*names: str, default: int) -> list[int]:
        found = [list(op.attributes[name]) for name in names if name in op.attributes]
        return found[0] if found else [default] * len(sizes)

    strides = of("window_strides", default=1)
    padding = of("padding", default=0)
    low, high = (padding[0::2], padding[1::2]) if len(padding) == 2 * len(sizes) else (padding, padding)
    window, tensor = of("window_dilations", "rhs_dilation", default=1), of("base_dilations", "lhs_dilation", default=1)
    return tuple(zip(sizes, strides, low, high, window, tensor, strict=True))


def _key(value: ir.Value) -> Hashable:
    """What is equal of two values that are one for the partitioner."""
    if not isinstance(value, ir.OpResult) or value.owner.name not in _MERGED:
        return value
    op = value.owner
    if op.name == "stablehlo.constant":
        return value_of(op)
    if len(op.operands) and op.operands[0].type == value.type:
        return _key(op.operands[0])
    given = [(name, op.attributes[name]) for name in op.attributes]
    return op.name, value.type, *given, *map(_key, op.operands)


def _number(op: ir.Operation, value: float) -> Hashable:
    """The key of a number of the elements of an operation's first operand."""
    element = ir.RankedTensorType(op.operands[0].type).element_type
    if isinstance(element, ir.IntegerType | ir.ComplexType):
        return value
    with op.location:
        return ir.DenseElementsAttr.get_splat(ir.RankedTensorType.get([], element), ir.FloatAttr.get(element, value))
