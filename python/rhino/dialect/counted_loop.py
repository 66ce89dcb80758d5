"""A loop that is counted as jax writes `fori_loop`, which every reader of loops knows.

Owns that form. What a loop carries and does is its maker's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect.constants import splat


def counted_loop(
    zero: Any, count: int, inits: Sequence[Any], body: Callable[[Any, Sequence[Any]], Sequence[Any]]
) -> ir.Operation:
    """Makes a loop of `count` trips at the insertion point; its counter is its first result.

    Args:
      zero: a constant of the counter's type, from which it counts.
      inits: what it carries besides.
      body: makes a trip, at the insertion point there, of the counter and what is carried; returns what is next.
    """
    counter, kinds = zero.type, [zero.type, *(v.type for v in inits)]
    loop = ir.Operation.create("stablehlo.while", results=kinds, operands=[zero, *inits], regions=2)
    locations = [ir.Location.current] * len(kinds)
    condition, trip = (region.blocks.append(*kinds, arg_locs=locations) for region in loop.regions)
    with ir.InsertionPoint(condition):
        less = stablehlo.ComparisonDirectionAttr.get("LT")
        stablehlo.ReturnOp([stablehlo.CompareOp(condition.arguments[0], splat(counter, count), less).result])
    with ir.InsertionPoint(trip):
        index, *carried = trip.arguments
        following = body(index, carried)
        stablehlo.ReturnOp([stablehlo.AddOp(index, splat(counter, 1)).result, *following])
    return loop
