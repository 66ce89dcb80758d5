"""How often a counted loop runs, told while a program is read: by its counter, as jax writes scan and fori_loop.

Owns that reading alone. What else there is to know of such a loop is in `rhino.ir.scans.loops`,
of a program that was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxlib.mlir import ir

from rhino.program.data import Op


def trip_count(op: Any, ids: Mapping[Any, int], scalars: Mapping[int, int], record: Op) -> int:
    """Trips of a counted loop `i = start; i < limit; i += step`; 1 for others.

    Args:
      ids: the numbers of values, and `scalars` the constants that some of them are.
      record: the loop, with its operands.
    """
    cond, body = (region.blocks[0] for region in op.regions)
    compare = next((o.operation for o in cond.operations if o.operation.name == "stablehlo.compare"), None)
    if compare is None or "LT" not in str(compare.attributes["comparison_direction"]):
        return 1
    position = next((i for i, a in enumerate(cond.arguments) if a == compare.operands[0]), None)
    limit = _scalar(compare.operands[1], ids, scalars)
    if position is None:
        return 1
    start = scalars.get(record.operands[position])
    last = body.operations[len(body.operations) - 1]
    increment = last.operands[position].owner
    step = None
    if getattr(increment, "name", "") == "stablehlo.add":
        step = next((s for v in increment.operands if (s := _scalar(v, ids, scalars)) is not None), None)
    if limit is None or start is None or not step or step < 0:
        return 1
    return max(1, -(-(limit - start) // step))


def _scalar(v: Any, ids: Mapping[Any, int], scalars: Mapping[int, int]) -> int | None:
    if v in ids:
        return scalars.get(ids[v])
    owner = v.owner
    if getattr(owner, "name", "") == "stablehlo.constant":
        value = owner.attributes["value"]
        return int(ir.IntegerAttr(ir.DenseElementsAttr(value).get_splat_value()).value)
    return None
