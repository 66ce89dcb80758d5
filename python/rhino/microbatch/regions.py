"""What becomes of loops and branches inside a micro-batch: the forms that their carries and results settle on.

Owns the fixpoint over a loop's carries. What the operations inside become, `flow` says; demands, `localise` meets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rhino.microbatch import localise
from rhino.microbatch.estimates import as_estimates
from rhino.microbatch.facts import Region
from rhino.microbatch.forms import (
    ESTIMATE,
    REGROUP,
    WHOLE,
    Form,
    NeedsSync,
    OwnEstimate,
    Partial,
    Refusal,
    Split,
    Whole,
)
from rhino.microbatch.plan import CopiedRegion, OpCopy, Ref, needed
from rhino.microbatch.scope import Scope
from rhino.program.data import Op

if TYPE_CHECKING:
    from rhino.microbatch.flow import BatchFlow


@dataclass(frozen=True, slots=True)
class LoopRegions:
    """A loop's carries and regions, and the ops of these that are needed."""

    operands: tuple[int, ...]
    results: tuple[int, ...]
    cond: Region
    body: Region
    cond_live: list[int]
    body_live: list[int]


def loop(flow: BatchFlow, scope: Scope, op: Op, forced: dict[int, Split]) -> OpCopy:
    """A loop: the forms its carries settle on. `forced` are the parts that are needed of results."""
    carried = _carried(flow, op)
    inits = [scope.form(v) for v in carried.operands]
    carry = [forced.get(v, f) for v, f in zip(carried.results, inits, strict=True)]
    zero = [scope.is_zero(v) for v in carried.operands]
    while True:
        inner, yields, changed = _iteration(flow, scope, op.index, carried, carry, zero)
        if not changed:
            break
    outer = _region(flow, scope, carried.cond, carried.cond_live, carry, zero)
    if not isinstance(outer.form(carried.cond.yields[0]), Whole):
        raise Refusal(op.index, "how often this loop runs depends on the batch", ((None, REGROUP),))
    localise.meet(flow, outer, frozenset())
    for v, form, held in zip(carried.operands, inits, carry, strict=True):
        if isinstance(form, Whole) and isinstance(held, Split):
            scope.demand(v, held, op.index)
    for v, arg, result in zip(carried.operands, carried.body.args, carried.results, strict=True):
        flow.estimates.merge(result, v)
        flow.estimates.merge(result, arg)
    read = [
        WHOLE if isinstance(f, Whole) and isinstance(c, Partial | OwnEstimate) else c
        for f, c in zip(inits, carry, strict=True)
    ]
    bodies = (_body(flow, outer, carried.cond, carry, [WHOLE]), _body(flow, inner, carried.body, carry, yields))
    for child in (outer, inner):
        for (v, split), k in child.demands.items():
            scope.demand(v, split, k)
    operands, results = zip(carried.operands, read, strict=True), zip(carried.results, carry, strict=True)
    return OpCopy(op.index, tuple(operands), tuple(results), bodies)


def _carried(flow: BatchFlow, op: Op) -> LoopRegions:
    """The loop without carries that nothing needs."""
    found = flow.loops.get(op.index)
    if found is None:
        cond, body = flow.facts.regions[op.index]
        keep = [i for i, v in enumerate(op.results) if v in flow.reads.used]
        while True:
            wanted = tuple(body.yields[i] for i in keep)
            live = flow.reads.live(body.ops, wanted)
            cond_live = flow.reads.live(cond.ops, cond.yields)
            read = {v for k in live for v in flow.reads.of(k)} | {v for k in cond_live for v in flow.reads.of(k)}
            read.update((*wanted, *cond.yields))
            more = [i for i, args in enumerate(zip(cond.args, body.args, strict=True)) if i in keep or read & {*args}]
            if more == keep:
                break
            keep = more
        found = flow.loops[op.index] = LoopRegions(
            tuple(op.operands[i] for i in keep),
            tuple(op.results[i] for i in keep),
            Region(tuple(cond.args[i] for i in keep), cond.ops, cond.yields),
            Region(tuple(body.args[i] for i in keep), body.ops, wanted),
            cond_live,
            live,
        )
    return found


def _iteration(
    flow: BatchFlow, scope: Scope, at: int, loop: LoopRegions, carry: list[Form], zero: list[bool]
) -> tuple[Scope, list[Form], bool]:
    """One pass over a loop's body; updates what is known of the carries, and says whether that changed."""
    body = loop.body
    for v, arg in zip(loop.operands, body.args, strict=True):
        flow.estimates.merge(arg, v)
    inner = _region(flow, scope, body, loop.body_live, carry, zero)
    yields: list[Form] = []
    before = (list(carry), list(zero))
    more = False
    for i, v in enumerate(body.yields):
        form, held = inner.form(v), carry[i]
        zero[i] = zero[i] and isinstance(form, Whole) and inner.is_zero(v)
        more |= flow.estimates.allowed and flow.estimates.merge(body.args[i], v)
        estimate = isinstance(held, OwnEstimate) and flow.estimates.can(form)
        if estimate or (isinstance(form, Whole) and isinstance(held, Split)):
            assert isinstance(held, Split | OwnEstimate)
            inner.demand(v, held, at)
            form = held
        elif isinstance(form, Whole) and isinstance(held, OwnEstimate):
            pass
        elif isinstance(held, Partial) and isinstance(form, OwnEstimate):
            carry[i] = form
        elif isinstance(form, Whole) and isinstance(held, Partial):
            if not inner.is_zero(v):
                raise Refusal(at, f"carry {i} of this loop is a sum over the batch, and is then replaced")
        elif isinstance(held, Whole) and form != held:
            if isinstance(form, Partial) and not (scope.is_zero(loop.operands[i]) and form.kind == "add"):
                raise Refusal(
                    at,
                    f"carry {i} of this loop adds up examples onto something that is not zero",
                    ((None, "start the sum from zero, and add the rest after the loop"),),
                )
            carry[i] = form
        elif form != held:
            if isinstance(form, Partial):
                raise NeedsSync(at, v)
            raise Refusal(at, f"carry {i} of this loop holds examples along different dimensions")
        yields.append(form)
    for v, split in localise.meet(flow, inner, frozenset(body.args)):
        i = body.args.index(v)
        if isinstance(carry[i], Whole):
            carry[i] = split
        elif carry[i] != split:
            raise Refusal(at, f"carry {i} of this loop holds examples along different dimensions")
    return inner, yields, more or (carry, zero) != before


def _region(
    flow: BatchFlow, scope: Scope, region: Region, live: Sequence[int], forms: Sequence[Form], zero: Sequence[bool]
) -> Scope:
    """A scope with the ops of a region analysed."""
    inner = Scope(flow.graph, scope)
    for v, form, is_zero in zip(region.args, forms, zero, strict=True):
        inner.forms[v] = form
        if is_zero and not isinstance(form, Split):
            inner.zero.add(v)
        if isinstance(form, OwnEstimate):
            inner.given.add(v)
    for k in live:
        flow.step(inner, k)
    return inner


def _body(flow: BatchFlow, inner: Scope, region: Region, forms: Sequence[Form], yields: Sequence[Form]) -> CopiedRegion:
    """The region as data, without what nothing needs."""
    passed: tuple[Ref, ...] = tuple(
        (v, WHOLE if isinstance(inner.form(v), Whole) and isinstance(f, Partial | OwnEstimate) else f)
        for v, f in zip(region.yields, yields, strict=True)
    )
    args: tuple[Ref, ...] = tuple(zip(region.args, forms, strict=True))
    return CopiedRegion(args, needed(inner.steps(), passed, flow.facts.effects), passed)


def branches(flow: BatchFlow, scope: Scope, op: Op) -> OpCopy:
    """An if or case: results are split if any branch makes them so."""
    chosen = scope.form(op.operands[0])
    if isinstance(chosen, Partial) and not flow.estimates.can(chosen):
        raise NeedsSync(op.index, op.operands[0])
    if isinstance(chosen, Split):
        raise Refusal(op.index, "which branch runs depends on the batch", ((None, REGROUP),))
    regions = flow.facts.regions[op.index]
    inner = [_region(flow, scope, r, flow.reads.live(r.ops, r.yields), (), ()) for r in regions]
    results: list[Form] = []
    for i in range(len(op.results)):
        found = [child.form(r.yields[i]) for child, r in zip(inner, regions, strict=True)]
        form = next((f for f in found if not isinstance(f, Whole)), WHOLE)
        if any(isinstance(f, OwnEstimate) for f in found) and all(
            isinstance(f, Whole) or flow.estimates.can(f) for f in found
        ):
            form = ESTIMATE
        for child, r, f in zip(inner, regions, found, strict=True):
            if isinstance(f, Whole) and isinstance(form, Split):
                child.demand(r.yields[i], form, op.index)
            elif isinstance(form, OwnEstimate):
                if not isinstance(f, Whole):
                    child.demand(r.yields[i], form, op.index)
            elif isinstance(f, Whole) and isinstance(form, Partial):
                if form.kind != "add" or not child.is_zero(r.yields[i]):
                    raise NeedsSync(op.index, r.yields[i])
            elif f != form:
                raise Refusal(op.index, f"the branches give result {i} of the batch in different forms")
        results.append(form)
    for child in inner:
        localise.meet(flow, child, frozenset())
        for (v, split), k in child.demands.items():
            scope.demand(v, split, k)
    bodies = tuple(_body(flow, child, r, (), results) for child, r in zip(inner, regions, strict=True))
    for r in regions:
        for v, result in zip(r.yields, op.results, strict=True):
            flow.estimates.merge(result, v)
    made = flow.made(op, as_estimates((chosen,)), results)
    return OpCopy(op.index, made.operands, made.results, bodies)
