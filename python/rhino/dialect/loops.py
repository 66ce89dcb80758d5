"""`stablehlo.while` with more to carry: what passes that add accumulators to a loop share.

Owns making the wider loop out of the old one. Knows nothing of what is carried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxlib.mlir import ir

from rhino.dialect import sdy
from rhino.dialect.constants import splat
from rhino.dialect.functions import attributes_of
from rhino.dialect.sdy import SHARDING


def widen(
    loop: ir.Operation,
    kinds: Sequence[ir.Type],
    following: Callable[[Sequence[Any]], Sequence[Any]],
    attributes: Mapping[str, ir.Attribute] | None = None,
    starts: Sequence[Any] | None = None,
) -> ir.Operation:
    """The loop, in front of the old one and in its place, with further carries that start as zeros or as told.

    The regions move over and uses of the old results are replaced; the caller erases the old loop, which stands where
    what reads the new results can be inserted.

    Args:
      kinds: tensor types of the further carries.
      following: called at the end of the body with their block arguments; returns what they go on with.
      attributes: instead of the old loop's.
      starts: what the further carries start as.
    """
    count = len(loop.results)
    given = attributes_of(loop) if attributes is None else dict(attributes)
    with loop.context, loop.location:
        with ir.InsertionPoint(loop):
            first = [splat(kind, 0) for kind in kinds] if starts is None else list(starts)
            new = ir.Operation.create(
                loop.name,
                results=[*(result.type for result in loop.results), *kinds],
                operands=[*loop.operands, *first],
                attributes=given,
                regions=len(loop.regions),
            )
        for old_region, region in zip(list(loop.regions), new.regions, strict=True):
            block = old_region.blocks[0]
            block.append_to(region)
            for kind in kinds:
                block.add_argument(kind, loop.location)
        body = new.regions[1].blocks[0]
        end = body.operations[len(body.operations) - 1].operation
        with ir.InsertionPoint(end):
            made = following(list(body.arguments)[count:])
            ir.Operation.create(end.name, operands=[*end.operands, *made])
        end.erase()
    for old, result in zip(loop.results, list(new.results)[:count], strict=True):
        old.replace_all_uses_with(result)
    return new


def widen_alike(
    loop: ir.Operation, positions: Sequence[int], following: Callable[[Sequence[Any]], Sequence[Any]]
) -> ir.Operation:
    """`widen` by carries like those at some positions, in type and sharding, that start as zeros."""
    attributes = attributes_of(loop)
    if SHARDING in attributes:
        given = sdy.results_of(loop)
        attributes[SHARDING] = sdy.per_value([*given, *(given[p] for p in positions)], loop.context)
    return widen(loop, [loop.results[p].type for p in positions], following, attributes)


def narrow(loop: ir.Operation, positions: Sequence[int]) -> ir.Operation:
    """Takes what is carried at some positions out of a loop, whose results and arguments nothing reads there.

    Returns a new loop with the same blocks, which comes in the place of the old one, which is erased.
    """
    kept = [i for i in range(len(loop.operands)) if i not in positions]
    with loop.context, loop.location, ir.InsertionPoint(loop):
        new = ir.Operation.create(
            loop.name,
            results=[loop.results[i].type for i in kept],
            operands=[loop.operands[i] for i in kept],
            attributes=attributes_of(loop),
            regions=len(loop.regions),
        )
        for old_region, region in zip(list(loop.regions), new.regions, strict=True):
            old_region.blocks[0].append_to(region)
        body = new.regions[1].blocks[0]
        end = body.operations[len(body.operations) - 1].operation
        with ir.InsertionPoint(end):
            ir.Operation.create(end.name, operands=[end.operands[i] for i in kept])
        end.erase()
        for region in new.regions:
            for i in sorted(positions, reverse=True):
                region.blocks[0].erase_argument(i)
    for i, result in zip(kept, new.results, strict=True):
        loop.results[i].replace_all_uses_with(result)
    loop.erase()
    return new
