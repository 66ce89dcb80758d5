"""Gathers of a layer that a loop cuts out of its stacks, a trip earlier than what reads it.

Owns the rewrite: a layer's parameters are gathered by the trip before, which hands them on. The gather then waits for
nothing that a trip computes, and nothing in the trip waits for it. Whether it is worth it is the caller's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any

from jaxlib.mlir import ir

from rhino.dialect import sdy
from rhino.dialect.constants import told_attributes
from rhino.dialect.functions import attributes_of, copy_all, end_of, owner_of, walk
from rhino.dialect.loops import widen
from rhino.dialect.sdy import SHARDING
from rhino.ir.layouts import split_by
from rhino.program.elementwise import ELEMENTWISE
from rhino.program.operations import CONTRACTIONS

_SLICE, _MOVE, _BARRIER = "stablehlo.dynamic_slice", "sdy.sharding_constraint", "stablehlo.optimization_barrier"
# What is made again a trip earlier: next to nothing beside a gather.
_LIGHT = ELEMENTWISE | {
    _SLICE, _MOVE, "stablehlo.broadcast_in_dim", "stablehlo.constant", "stablehlo.reshape", "stablehlo.slice",
    "stablehlo.transpose",
}  # fmt: skip


@dataclass(frozen=True)
class _Gather:
    """What a trip gathers of its layer.

    Attributes:
      moves: the operations that gather it, all the same of the same; the first one is copied.
      way: the operations in front, in order.
    """

    moves: tuple[ir.Operation, ...]
    way: tuple[ir.Operation, ...]


def gather_earlier(module: ir.Module, first: bool = False) -> int:
    """As rhino-gather-earlier, in place; returns how many gathers are earlier.

    The first one is in front of the loop. The last trip gathers once more, where its stack ends, what nothing reads.

    Args:
      first: of each loop those alone that stand before the first product that reads what is gathered.
    """
    changed = 0
    for loop in [op for op in walk(module.operation) if op.name == "stablehlo.while"]:
        found = _gathers(loop, first)
        if found:
            _rewrite(loop, found)
            changed += len(found)
    return changed


def _gathers(loop: ir.Operation, first: bool) -> list[_Gather]:
    """What a loop gathers of what a trip cuts out by its counter, in order."""
    body = loop.regions[1].blocks[0]
    yields = list(end_of(body).operands)
    found: dict[Any, _Gather] = {}
    known: dict[Any, Any] = {}
    enough = False
    for op in (one.operation for one in body.operations):
        enough = enough or (first and bool(found) and op.name in CONTRACTIONS)
        if op.name != _MOVE or not is_gather(op):
            continue
        signature = _signature(op.operands[0], known), str(op.attributes["sharding"])
        before = found.get(signature)
        if before is None and enough:
            continue
        # What is read once more is not gathered once more.
        way = before.way if before is not None else _way(op.operands[0], body, yields)
        if way is not None:
            found[signature] = _Gather((*before.moves, op) if before is not None else (op,), way)
    # What is gathered by one axis after the other is handed on once, and what is handed on already is left.
    inside = {end_of(body), *(op for one in found.values() for op in (*one.way, *one.moves))}
    return [one for one in found.values() if any(_is_read_beside(op, inside) for op in one.moves)]


def _is_read_beside(op: ir.Operation, inside: Set[ir.Operation]) -> bool:
    return any(use.owner.operation not in inside for use in op.results[0].uses)


def is_gather(op: ir.Operation) -> bool:
    """Whether a constraint leaves something less split than it is."""
    before, after = split_by(op.operands[0]), sdy.dims_of(op.attributes["sharding"])
    return any(a not in new for old, new in zip(before, after, strict=True) for a in old)


def _signature(v: Any, known: dict[Any, Any]) -> Any:
    """The same for values that the same operations make of the same."""
    v = _source(v)
    op = owner_of(v)
    if op is None or op.name not in _LIGHT:
        return v
    if v not in known:
        known[v] = (op.name, told_attributes(op), v.type, tuple(_signature(u, known) for u in op.operands))
    return known[v]


def _way(v: Any, body: ir.Block, yields: Sequence[Any]) -> tuple[ir.Operation, ...] | None:
    """The operations of a trip that cut a value out by a counter, in order; None if it is made of anything else.

    What they read of the loop is handed on unchanged, or a number that follows from such.
    """
    way = _light([v], body)
    if way is None or not any(op.name == _SLICE for op in way):
        return None
    counters = _changed([v, *(u for op in way for u in op.operands)], body, yields)
    following = _light([yields[p] for p in counters], body)
    if not counters or following is None or any(body.arguments[p].type.shape for p in counters):
        return None
    further = _changed([u for op in following for u in op.operands], body, yields)
    return way if set(further) <= set(counters) else None


def _light(values: Iterable[Any], body: ir.Block) -> tuple[ir.Operation, ...] | None:
    """The operations of a body that make values, in order; None if one is no light one."""
    pending, found = [*values], set[ir.Operation]()
    while pending:
        op = owner_of(_source(pending.pop()))
        if op is None or op.block != body or op in found:
            continue
        if op.name not in _LIGHT:
            return None
        found.add(op)
        pending.extend(op.operands)
    return tuple(op for op in (one.operation for one in body.operations) if op in found)


def _changed(values: Iterable[Any], body: ir.Block, yields: Sequence[Any]) -> list[int]:
    """Where those of the values are among what the loop carries that it changes."""
    given = [v.arg_number for v in map(_source, values) if owner_of(v) is None and v.owner == body]
    return sorted({p for p in given if yields[p] != body.arguments[p]})


def _source(v: Any) -> Any:
    """What a barrier is given for a value. jax.checkpoint has one around all that a layer reads."""
    while (op := owner_of(v)) is not None and op.name == _BARRIER:
        v = op.operands[ir.OpResult(v).result_number]
    return v


def _rewrite(loop: ir.Operation, found: Sequence[_Gather]) -> None:
    body = loop.regions[1].blocks[0]
    arguments, yields = list(body.arguments), list(end_of(body).operands)
    moves = [one.moves[0] for one in found]
    way = dict.fromkeys(op for one in found for op in one.way)
    ordered = [op for op in (one.operation for one in body.operations) if op in way]
    attributes = attributes_of(loop)
    if SHARDING in attributes:
        given = [*sdy.results_of(loop), *(op.attributes["sharding"] for op in moves)]
        attributes[SHARDING] = sdy.per_value(given, loop.context)

    def gathered(given: Sequence[Any]) -> list[Any]:
        """The gathers again, at the insertion point, of what the body is given."""
        values = dict(zip(arguments, given, strict=True))
        for op in (*ordered, *moves):
            values |= {v: values.get(_source(v), _source(v)) for v in op.operands}
            copy_all([op], values)
        return [values[op.results[0]] for op in moves]

    def following(carried: Sequence[Any]) -> list[Any]:
        earlier = gathered(yields)
        for one, value in zip(found, carried, strict=True):
            for op in one.moves:
                op.results[0].replace_all_uses_with(value)
                op.erase()
        for op in reversed(ordered):
            if not any(len(list(v.uses)) for v in op.results):
                op.erase()
        return earlier

    with ir.InsertionPoint(loop), loop.location:
        starts = gathered(loop.operands)
    widen(loop, [v.type for v in starts], following, attributes, starts)
    loop.erase()
