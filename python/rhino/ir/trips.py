"""How often a counted loop runs: by its counter, as jax writes scan and fori_loop.

Owns that reading alone, of operations. What else there is to know of such a loop is in `rhino.ir.scans.loops`, of a
program that was read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxlib.mlir import ir

from rhino.dialect.functions import end_of, owner_of


def trip_count(op: Any, number: Callable[[Any], int | None]) -> int:
    """Trips of a counted loop `i = start; i < limit; i += step`; 1 for others.

    Args:
      number: the integer that a value always is, as far as it is known.
    """
    cond, body = (region.blocks[0] for region in op.regions)
    compare = next((o.operation for o in cond.operations if o.operation.name == "stablehlo.compare"), None)
    if compare is None or "LT" not in str(compare.attributes["comparison_direction"]):
        return 1
    position = next((i for i, a in enumerate(cond.arguments) if a == compare.operands[0]), None)
    limit = number(compare.operands[1])
    if position is None:
        return 1
    start = number(op.operands[position])
    step = _step(body, position, number)
    if limit is None or start is None or step <= 0:
        return 1
    return max(1, -(-(limit - start) // step))


def _step(body: Any, position: int, number: Callable[[Any], int | None]) -> int:
    """What is added to a counter in one trip; 0 if anything else is done to it."""
    found, v = 0, end_of(body).operands[position]
    while v != body.arguments[position]:
        op = owner_of(v)
        if op is None or op.name != "stablehlo.add":
            return 0
        left, right = op.operands
        added, v = (number(left), right) if number(right) is None else (number(right), left)
        if added is None:
            return 0
        found += added
    return found


def constant(v: Any) -> int | None:
    """The integer that a constant operation makes."""
    op = owner_of(v)
    if op is None or op.name != "stablehlo.constant" or v.type.shape:
        return None
    # Of other types the bindings may know no attributes.
    if not isinstance(v.type.element_type, ir.IntegerType):
        return None
    return int(ir.IntegerAttr(ir.DenseElementsAttr(op.attributes["value"]).get_splat_value()).value)
