"""What reductions combine their elements with, and where they start.

Owns reading the regions of `stablehlo.reduce`, `reduce_window`, `scatter` and `select_and_scatter`. Which of it devices
can do together is in `rhino.program.partial`.
"""

from __future__ import annotations

from typing import Any

from jaxlib.mlir import ir

from rhino.dialect.constants import is_identity
from rhino.program.operations import COMBINERS, stablehlo

REDUCING = frozenset(
    {"stablehlo.reduce", "stablehlo.reduce_window", "stablehlo.scatter", "stablehlo.select_and_scatter"}
)
# A reducer that takes one of its two (tuples of) elements, as those of argmax do.
SELECT = "select"
_CHOOSING = stablehlo("compare select and or not xor constant")
_SAME_NUMBER = ("stablehlo.convert", "stablehlo.reshape", "stablehlo.broadcast_in_dim")


def combiners_of(op: ir.Operation) -> tuple[str, ...]:
    """What each result is combined with: "add", "multiply", "maximum", "minimum", "and", "or" or "xor".

    All are SELECT for a reducer of several operands that takes one of two elements, and all "" for any other.
    """
    block = op.regions[-1].blocks[0]
    arguments = list(block.arguments)
    count = len(op.results)
    *body, end = [view.operation for view in block.operations]
    found = tuple(
        _kind(v, {arguments[i], arguments[count + i]}, result)
        for i, (v, result) in enumerate(zip(end.operands, op.results, strict=True))
    )
    if "" not in found:
        return found
    chosen = count > 1 and all(inner.name in _CHOOSING for inner in body)
    # Where one result is made in another way, it may be made of all.
    return (SELECT if chosen and all(map(_is_chosen, end.operands)) else "",) * count


def _kind(v: Any, elements: set[Any], result: Any) -> str:
    """The operation that makes v of exactly these two, in the result's type."""
    if not isinstance(v, ir.OpResult) or v.type.element_type != result.type.element_type:
        return ""
    made = v.owner.operation
    name: str = made.name.removeprefix("stablehlo.")
    return name if name in COMBINERS.values() and set(made.operands) == elements else ""


def _is_chosen(v: Any) -> bool:
    return not isinstance(v, ir.OpResult) or v.owner.operation.name == "stablehlo.select"


def starts(op: ir.Operation) -> range:
    """The operands that a reduction starts from, one per result; of a scatter they are what it updates."""
    count = len(op.results)
    if op.name == "stablehlo.scatter":
        return range(count)
    return range(len(op.operands) - count, len(op.operands))


def starts_neutral(op: ir.Operation, i: int, kind: str) -> bool:
    """Whether result i starts from a constant that changes nothing; assumed where the reducer is no operation."""
    if kind in ("", SELECT):
        return True
    v, converted = op.operands[starts(op)[i]], False
    while isinstance(v, ir.OpResult) and v.owner.operation.name in _SAME_NUMBER:
        converted |= v.owner.operation.name == "stablehlo.convert"
        v = v.owner.operation.operands[0]
    if not isinstance(v, ir.OpResult):
        return False
    bound = kind in ("maximum", "minimum", "and") and isinstance(v.type.element_type, ir.IntegerType)
    # The least of eight bits is not the least of more.
    return is_identity(v.owner.operation, kind) and not (converted and bound)
