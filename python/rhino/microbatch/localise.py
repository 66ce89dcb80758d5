"""Parts of whole values: computed for the micro-batch where that is cheap, otherwise cut out of the whole.

Owns the way back from a demand through element-wise chains, broadcasts, iota and loops (random bits of a dropout mask
are made of these), so that no micro-batch makes what it does not need.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from rhino.microbatch.factors import find, place, rule_of
from rhino.microbatch.forms import (
    ESTIMATE,
    WHOLE,
    Coarser,
    Form,
    NeedsSync,
    OwnEstimate,
    Partial,
    Refusal,
    Split,
    Whole,
)
from rhino.microbatch.plan import OpCopy, Scaled, TakePart
from rhino.microbatch.scope import Scope
from rhino.program.data import Op
from rhino.program.operations import HEAVY, NESTING, WINDOWED, stablehlo

if TYPE_CHECKING:
    from rhino.microbatch.flow import BatchFlow

# Their results depend on more than the matching part of what they read, or they are dear.
DEAR = (HEAVY - WINDOWED) | NESTING | stablehlo("rng rng_bit_generator custom_call optimization_barrier")


def meet(flow: BatchFlow, scope: Scope, args: frozenset[int]) -> list[tuple[int, Split]]:
    """Meets the demands on values of this scope; leaves in it those on values of enclosing ones.

    Returns those on the scope's arguments, which must be carried in parts.
    """
    pending = [(-_producer(scope, v), n, v, split) for n, (v, split) in enumerate(scope.demands)]
    heapq.heapify(pending)
    outside: dict[tuple[int, Split | OwnEstimate], int] = {}
    found: dict[tuple[int, Split], None] = {}
    asked, scope.demands = scope.demands, {}
    made: set[tuple[int, Form]] = set()
    while pending:
        _, _, v, split = heapq.heappop(pending)
        if (v, split) in made or (isinstance(split, OwnEstimate) and v in scope.given):
            continue
        if v not in scope.forms and scope.parent is not None:
            outside[v, split] = asked[v, split]
        elif isinstance(split, OwnEstimate) and isinstance(kept := scope.form(v), Partial):
            scope.add(_producer(scope, v), Scaled(v, kept))
        elif isinstance(split, Split) and v in args:
            found[v, split] = None
        elif (copy := _estimate(scope, v) if isinstance(split, OwnEstimate) else _copy(flow, scope, v, split)) is None:
            if isinstance(split, OwnEstimate) or isinstance(scope.form(v), Partial | OwnEstimate):
                raise NeedsSync(asked[v, split], v)
            scope.add(_producer(scope, v), TakePart(v, split))
        else:
            scope.add(copy.op, copy)
            # A loop gives several parts at once, and asks for more than its operands.
            made.update(copy.results)
            more, scope.demands = scope.demands, {}
            for ref, form in (*copy.operands, *more):
                if isinstance(form, Split | OwnEstimate) and (ref, form) not in asked:
                    asked[ref, form] = copy.op
                    heapq.heappush(pending, (-_producer(scope, ref), len(asked), ref, form))
    scope.demands = outside
    return list(found)


def _producer(scope: Scope, v: int) -> int:
    return scope.graph.values[v].producer


def _copy(flow: BatchFlow, scope: Scope, v: int, split: Split) -> OpCopy | None:
    """The copy of the value's producer that makes just the part, or None if the part is to be cut out."""
    k = _producer(scope, v)
    if k < 0:
        return None
    op = flow.graph.ops[k]
    form = scope.form(v)
    whole = isinstance(form, Whole)
    if isinstance(form, Split):
        return None
    if not whole and not all(isinstance(f, Whole) or flow.estimates.can(f) for f in map(scope.form, op.operands)):
        return None
    if op.name == "stablehlo.while":
        return _loop(flow, scope, op, v, split) if whole else None
    if op.name == "stablehlo.iota" or (op.name == "stablehlo.constant" and op.tag == "splat"):
        return OpCopy(k, (), ((v, split),))
    if op.name in DEAR or op.kernel is not None or len(op.results) != 1 or k in flow.facts.regions:
        return None
    rule = rule_of(flow.graph, op)
    if rule is None or not op.operands:
        return None
    try:
        span = find(rule, rule.results[0], split, flow.graph.values[v].shape[split.dim])
    except Coarser:
        return None
    if span is None or span.factor in (*rule.replicate, *rule.permutation, *rule.reduction):
        return None
    read: list[tuple[int, Form]] = []
    for operand, dims in zip(op.operands, rule.operands, strict=True):
        part = place(rule, dims, span)
        shared: Form = WHOLE if isinstance(scope.form(operand), Whole) else ESTIMATE
        read.append((operand, shared if part is None else part))
    return OpCopy(k, tuple(read), ((v, split),))


def _estimate(scope: Scope, v: int) -> OpCopy | None:
    """The copy of an op that waits for the end of the loop, for the micro-batch alone."""
    k = _producer(scope, v)
    if k < 0:
        return None
    op = scope.graph.ops[k]
    read = ((u, WHOLE if isinstance(scope.form(u), Whole) else ESTIMATE) for u in op.operands)
    return OpCopy(k, tuple(read), tuple((r, ESTIMATE) for r in op.results))


def _loop(flow: BatchFlow, scope: Scope, op: Op, v: int, split: Split) -> OpCopy | None:
    """A loop whose carries are all whole, with the part of one of them made in it; None if that is not cheap."""
    _, body = flow.facts.regions[op.index]
    names = {flow.graph.ops[k].name for k in body.ops}
    if names & DEAR:
        return None
    before = dict(scope.demands)
    try:
        return flow.loop(scope, op, {v: split})
    except (Refusal, NeedsSync, Coarser):
        scope.demands = before
        return None
