"""Products that a loop keeps of every trip, made in the order of dimensions in which what is kept is read.

Owns which products are exchanged, and how; knows no layouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect.dots import exchanged, tells_apart
from rhino.dialect.functions import attributes_of, walk
from rhino.dialect.sdy import SHARDING
from rhino.program.elementwise import ELEMENTWISE

_DOT, _TRANSPOSE, _UPDATE = "stablehlo.dot_general", "stablehlo.transpose", "stablehlo.dynamic_update_slice"
# What they make has the order of what they read; a row of a stack has one dimension more than what it is made of.
_ALIKE = ELEMENTWISE | {"stablehlo.broadcast_in_dim", "stablehlo.reshape"}


def order_products(module: ir.Module) -> int:
    """As rhino-order-products, in place; returns how many products are made in another order."""
    changed = 0
    for op in [op for op in walk(module.operation) if op.name == _DOT]:
        reader = _transposition(op)
        made = None if reader is None else _ordered(op, reader)
        if reader is not None and made is not None:
            reader.results[0].replace_all_uses_with(made)
            reader.erase()
            op.erase()
            changed += 1
    return changed


def _transposition(op: ir.Operation) -> ir.Operation | None:
    """The one reader of a product larger than its operands, if it transposes, and a stack gets what it makes."""
    uses = list(op.results[0].uses)
    if len(uses) != 1 or uses[0].owner.name != _TRANSPOSE or _size(op.results[0]) <= sum(map(_size, op.operands)):
        return None
    reader = uses[0].owner.operation
    laid_out = SHARDING in op.attributes or SHARDING in reader.attributes
    return reader if not laid_out and _is_stacked(reader.results[0]) else None


def _is_stacked(value: ir.Value) -> bool:
    """Whether a row of a stack is made of a value, element by element."""
    pending, seen = [value], {value}
    for made in pending:  # grows
        for use in made.uses:
            owner = use.owner.operation
            if owner.name == _UPDATE and use.operand_number == 1:
                return True
            if owner.name in _ALIKE and owner.results[0] not in seen:
                seen.add(owner.results[0])
                pending.append(owner.results[0])
    return False


def _ordered(op: ir.Operation, reader: ir.Operation) -> ir.Value | None:
    """A product's result as its reader would have it; None where no product has that order."""
    if tells_apart(op):
        return None
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    lhs = _Side.of(op.operands[0], numbers.lhs_batching_dimensions, numbers.lhs_contracting_dimensions)
    rhs = _Side.of(op.operands[1], numbers.rhs_batching_dimensions, numbers.rhs_contracting_dimensions)
    # Dimensions of the result: those of the batch, of one operand, of the other.
    batch, middle, wanted = len(lhs.batch), len(lhs.batch) + len(lhs.free), list(reader.attributes["permutation"])
    heads = [d for d in wanted if d < batch]
    of_lhs, of_rhs = [d for d in wanted if batch <= d < middle], [d for d in wanted if d >= middle]
    swaps = wanted == heads + of_rhs + of_lhs
    if not swaps and wanted != heads + of_lhs + of_rhs:
        return None
    attributes = attributes_of(op)
    with op.context, op.location, ir.InsertionPoint(op):
        sides = [lhs.reordered(heads, [d - batch for d in of_lhs]), rhs.reordered(heads, [d - middle for d in of_rhs])]
        if swaps:
            sides.reverse()
            attributes = exchanged(attributes)
        attributes["dot_dimension_numbers"] = stablehlo.DotDimensionNumbers.get(
            *(side.batch for side in sides), *(side.contracted for side in sides)
        )
        values = [side.value for side in sides]
        made = ir.Operation.create(_DOT, results=[reader.results[0].type], operands=values, attributes=attributes)
    return made.results[0]


@dataclass(frozen=True, slots=True)
class _Side:
    """One operand of a product, and its dimensions by what becomes of them."""

    value: ir.Value
    batch: list[int]
    contracted: list[int]
    free: list[int]

    @classmethod
    def of(cls, value: ir.Value, batch: Sequence[int], contracted: Sequence[int]) -> _Side:
        """An operand as it is: what is neither comes in its order in the result."""
        gone = {*batch, *contracted}
        return cls(value, list(batch), list(contracted), [d for d in range(len(value.type.shape)) if d not in gone])

    def reordered(self, batch: Sequence[int], free: Sequence[int]) -> _Side:
        """With its batching and free dimensions, given by their numbers among these, in another order."""
        order = list(range(len(self.value.type.shape)))
        for place, i in zip(self.free, free, strict=True):
            order[place] = self.free[i]
        value = self.value
        if order != sorted(order):
            value = stablehlo.TransposeOp(value, ir.DenseI64ArrayAttr.get(order)).result
        return _Side(value, [self.batch[i] for i in batch], self.contracted, self.free)


def _size(value: ir.Value) -> int:
    return prod(value.type.shape)
