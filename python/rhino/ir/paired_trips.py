"""Two trips of a loop in one, where a trip hands on what it gathers: the buffers of the two change places.

Owns the rewrite. What a trip gathers for the next one lies beside what the trip before has gathered for it, and a loop
has one place for both: at the end of each trip XLA copies there (`XLA: carried-copied`). In a body of two trips the
second one gathers into the place of what only the first has read. Whether that is worth it is the caller's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxlib.mlir import ir

from rhino.dialect import sdy
from rhino.dialect.functions import copy_all, end_of, owner_of, walk
from rhino.dialect.loops import widen_alike
from rhino.dialect.sdy import SHARDING
from rhino.ir.early_gathers import is_gather
from rhino.ir.trips import constant, trip_count
from rhino.program.elementwise import ELEMENTWISE

_BARRIER = "stablehlo.optimization_barrier"
# What makes the same of the same each time.
_NUMBERS = ELEMENTWISE | {"stablehlo.constant"}


def pair_trips(module: ir.Module) -> int:
    """As rhino-pair-trips, in place; returns how many loops have two trips in one.

    Of an odd number of trips the first is in front of the loop.
    """
    changed = 0
    # Inner loops first: a trip that is copied has them as they are then.
    for loop in reversed([op for op in walk(module.operation) if op.name == "stablehlo.while"]):
        trips = trip_count(loop, constant)
        if trips > 1 and _only_counts(loop) and _hands_on_gathers(loop):
            _pair(loop, trips)
            changed += 1
    return changed


def _only_counts(loop: ir.Operation) -> bool:
    """Whether a loop ends by its count alone, and not in the middle of two trips."""
    cond = loop.regions[0].blocks[0]
    ends = owner_of(end_of(cond).operands[0])
    compares = [op for op in (one.operation for one in cond.operations) if op.name == "stablehlo.compare"]
    return compares == [ends]


def _hands_on_gathers(loop: ir.Operation) -> bool:
    """Whether a trip gathers what the next one reads."""
    body = loop.regions[1].blocks[0]
    for argument, v in zip(body.arguments, end_of(body).operands, strict=True):
        op = owner_of(v)
        inside = op is not None and op.block == body and op.name == "sdy.sharding_constraint" and is_gather(op)
        if inside and len(list(argument.uses)):
            return True
    return False


def _pair(loop: ir.Operation, trips: int) -> None:
    body = loop.regions[1].blocks[0]
    arguments, end = list(body.arguments), end_of(body)
    yields = list(end.operands)
    trip = [op for op in (one.operation for one in body.operations) if op != end]
    if trips % 2:
        with ir.InsertionPoint(loop), loop.location:
            for p, v in enumerate(_after(trip, yields, dict(zip(arguments, loop.operands, strict=True)))):
                loop.operands[p] = v
    sums = [p for p in range(len(yields)) if _only_adds(loop, p)]
    changed = [p for p, v in enumerate(yields) if v != arguments[p] and p not in sums]
    with ir.InsertionPoint(end), loop.location:
        # XLA's scheduler goes through a body from its end and would put what both trips send beside the second one.
        barrier = ir.Operation.create(
            _BARRIER, [yields[p].type for p in changed], [yields[p] for p in changed], _layouts(loop, changed)
        )
        between = dict(zip([arguments[p] for p in changed], barrier.results, strict=True))
        following = _after(trip, yields, dict(between))
        # But what the loop counts goes on as it did: XLA has to see how many trips there are.
        before = dict(zip(arguments, yields, strict=True))
        for p in changed:
            steps = _counting(yields[p], body)
            if steps is not None:
                following[p] = _after(steps, [yields[p]], dict(before))[0]
    for p, v in enumerate(following):
        end.operands[p] = yields[p] if p in sums else v
    if sums:
        _add_apart(loop, {p: owner_of(following[p]) for p in sums})


def _only_adds(loop: ir.Operation, p: int) -> bool:
    """Whether a trip adds something to what is carried at a position, and the loop does nothing else with that."""
    cond, body = (region.blocks[0] for region in loop.regions)
    carried, v = body.arguments[p], end_of(body).operands[p]
    add = owner_of(v)
    alone = all(len(list(value.uses)) == n for value, n in ((cond.arguments[p], 0), (carried, 1), (v, 1)))
    adds = add is not None and add.name == "stablehlo.add" and carried in list(add.operands)
    return adds and alone and isinstance(v.type.element_type, ir.FloatType)


def _add_apart(loop: ir.Operation, additions: Mapping[int, ir.Operation]) -> None:
    """What second trips add goes to places of its own, which start as zeros and are added behind the loop.

    XLA sums over devices what a loop only adds up when that is over, but not what is added up in two steps of a trip.
    `XLA: sums-leave-loops`
    """
    count, body = len(loop.results), loop.regions[1].blocks[0]

    def following(places: Sequence[Any]) -> list[Any]:
        for (p, add), place in zip(additions.items(), places, strict=True):
            add.operands[list(add.operands).index(body.arguments[p])] = place
        return [add.results[0] for add in additions.values()]

    new = widen_alike(loop, list(additions), following)
    for (p, add), others in zip(additions.items(), list(new.results)[count:], strict=True):
        with ir.InsertionPoint(loop), add.location:
            total = add.clone()
        total.operands[0], total.operands[1] = new.results[p], others
        new.results[p].replace_all_uses_except(total.results[0], total.operation)
    loop.erase()


def _after(ops: Sequence[ir.Operation], yields: Sequence[Any], values: dict[Any, Any]) -> list[Any]:
    """What a trip hands on that starts with `values`: a copy of its operations, at the insertion point."""
    copy_all(ops, values)
    return [values.get(v, v) for v in yields]


def _layouts(loop: ir.Operation, positions: Sequence[int]) -> Mapping[str, ir.Attribute]:
    if SHARDING not in loop.attributes:
        return {}
    given = sdy.results_of(loop)
    return {SHARDING: sdy.per_value([given[p] for p in positions], loop.context)}


def _counting(v: Any, body: ir.Block) -> list[ir.Operation] | None:
    """The operations of a trip that make a number of numbers alone, in order; None for anything else."""
    pending, found = [v], set[ir.Operation]()
    while pending:
        v = pending.pop()
        if v.type.shape:
            return None
        op = owner_of(v)
        if op is not None and op.block == body and op not in found:
            if op.name not in _NUMBERS:
                return None
            found.add(op)
            pending.extend(op.operands)
    return [op for op in (one.operation for one in body.operations) if op in found]
