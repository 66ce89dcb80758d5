"""What becomes of one operation inside a micro-batch: the forms of its results from those of what it reads.

Owns the forward rules (docs/design/microbatches.md, "Transitions"); those of loops and branches are in `regions`. Where
whole values are needed in part, it leaves a demand, which `localise` meets. Asks `factors` where the batch is and
`linear` what keeps sums.
"""

from __future__ import annotations

from collections.abc import Sequence

from rhino.microbatch import regions
from rhino.microbatch.estimates import Estimates, as_estimates, as_whole
from rhino.microbatch.factors import Span, find, place, rule_of
from rhino.microbatch.facts import BatchFacts, Reads
from rhino.microbatch.forms import (
    ESTIMATE,
    REGROUP,
    WHOLE,
    Coarser,
    Form,
    NeedsSync,
    Onto,
    OwnEstimate,
    Partial,
    Refusal,
    Split,
    Whole,
)  # fmt: skip
from rhino.microbatch.linear import keeps_partial, keeps_zero
from rhino.microbatch.plan import OpCopy
from rhino.microbatch.runs import of_runs
from rhino.microbatch.scope import Scope
from rhino.program.data import Graph, Op
from rhino.program.operations import BRANCHES, COMBINERS, CONTRACTIONS

LOOP = "stablehlo.while"
BARRIER = "stablehlo.optimization_barrier"
# It changes nothing how often they start.
_REPEATED = ("maximum", "minimum", "and", "or")
_INDEXED = ("stablehlo.gather", "stablehlo.scatter")
_CALLS = "a callback in a loop or branch that works on the batch would run once per micro-batch, on a part of it"
_CALL_AFTER = "return what it reads from the loop, and call it there; or run the step as one micro-batch"
_TAKING = ("stablehlo.slice", "stablehlo.dynamic_slice")
_PARTS = (
    f"{REGROUP}; micro-batches of the step's own: write it as one lax.scan over all of them that adds up gradients, "
    "which a pipeline takes for its loop, or leave it out and give microbatches"
)


class BatchFlow:
    """The rules, for one program."""

    def __init__(self, graph: Graph, facts: BatchFacts, microbatches: int, estimates: Estimates) -> None:
        self.graph, self.facts, self.microbatches, self.estimates = graph, facts, microbatches, estimates
        self.reads = Reads(graph, facts)
        self.loops: dict[int, regions.LoopRegions] = {}

    def forms(self, scope: Scope, k: int) -> list[Form]:
        """The forms of all that op k reads."""
        return [scope.form(v) for v in self.reads.of(k)]

    def step(self, scope: Scope, k: int) -> None:
        """Gives op k's results forms and puts the step that makes them into the scope.

        Raises:
          Refusal, NeedsSync, Coarser.
        """
        op = self.graph.ops[k]
        try:
            copy = self.copy(scope, op)
        except Coarser as coarser:
            coarser.op = k if coarser.op < 0 else coarser.op
            raise
        for v, form in copy.results:
            scope.forms[v] = form
            if isinstance(form, OwnEstimate):
                scope.given.add(v)
        for v, form in copy.operands:
            if isinstance(form, OwnEstimate):
                scope.demand(v, form, k)
        if not copy.bodies:
            self.estimates.note(k, copy.operands, copy.results)
        scope.add(k, copy)

    def copy(self, scope: Scope, op: Op) -> OpCopy:
        """The copy of an op for a micro-batch."""
        if op.name == LOOP:
            return self.loop(scope, op, {})
        if op.name in BRANCHES:
            return regions.branches(self, scope, op)
        if op.index in self.facts.regions:
            if any(not isinstance(f, Whole) for f in self.forms(scope, op.index)):
                raise Refusal(
                    op.index, f"'{op.name}' reads the batch, and its body cannot be split", ((None, REGROUP),)
                )
            return scope.whole(op.index)
        if op.index in self.facts.host and (
            op.index in self.facts.effects or any(not isinstance(scope.form(v), Whole) for v in op.operands)
        ):
            raise Refusal(op.index, _CALLS, ((None, _CALL_AFTER),))
        inside = self.facts.captures.get(op.index, ())
        if any(not isinstance(scope.form(v), Whole) or scope.owner(v).parent is not None for v in inside):
            raise Refusal(op.index, f"the body of '{op.name}' reads a value that the loop computes", ((None, REGROUP),))
        forms = [scope.form(v) for v in op.operands]
        if op.name == BARRIER:
            return self.made(op, forms, forms)
        if all(isinstance(f, Whole) for f in forms):
            self.zero(scope, op)
            return scope.whole(op.index)
        if any(isinstance(f, Split) for f in forms):
            return self.split(scope, op, forms)
        nested = scope.parent is not None
        zero = [scope.is_zero(v) for v in op.operands]
        held = self.estimates.for_sum(op, forms, anyway=nested)
        if held is not None and any(isinstance(f, Partial) for f in held):
            kept = keeps_partial(self.graph, self.facts, op, as_whole(held), zero, nested)
            if kept is not None:
                return self.made(op, held, [kept] * len(op.results))
        if nested and self.estimates.inside and all(isinstance(f, Whole) or self.estimates.can(f) for f in forms):
            return self.made(op, as_estimates(forms), [ESTIMATE] * len(op.results))
        raise NeedsSync(op.index, next(v for v, f in zip(op.operands, forms, strict=True) if not isinstance(f, Whole)))

    def made(self, op: Op, operands: Sequence[Form], results: Sequence[Form]) -> OpCopy:
        """A copy with these forms."""
        return OpCopy(
            op.index, tuple(zip(op.operands, operands, strict=True)), tuple(zip(op.results, results, strict=True))
        )

    def zero(self, scope: Scope, op: Op) -> None:
        """Notes whether the result of a whole op is zero."""
        if op.index in self.facts.zeros or (
            len(op.results) == 1 and op.operands and keeps_zero(op, [scope.is_zero(v) for v in op.operands])
        ):
            scope.zero.update(op.results)

    def loop(self, scope: Scope, op: Op, forced: dict[int, Split]) -> OpCopy:
        """A loop; `forced` are the parts that are needed of its results."""
        return regions.loop(self, scope, op, forced)

    # Operations with a factor rule.

    def split(self, scope: Scope, op: Op, forms: list[Form]) -> OpCopy:
        """An op that reads a part of the batch."""
        k, values = op.index, self.graph.values
        if runs := of_runs(self.graph, self.facts, op, forms):
            for v, old, form in zip(op.operands, forms, runs[0], strict=True):
                if isinstance(old, Whole) and isinstance(form, Split):
                    scope.demand(v, form, k)
            return self.made(op, runs[0], [runs[1]])
        rule = rule_of(self.graph, op)
        if rule is None:
            raise Refusal(k, f"'{op.name}' reads the batch, and how it works on it is not known", ((None, REGROUP),))
        span: Span | None = None
        for i, (v, form) in enumerate(zip(op.operands, forms, strict=True)):
            if not isinstance(form, Split):
                continue
            found = find(rule, rule.operands[i], form, values[v].shape[form.dim])
            if found is None or (self.facts.grouped.get(k) and i == 0 and form.dim in self.facts.grouped[k]):
                raise self.mixes(op, form)
            if span is not None and found != span:
                raise self.indexes(op) if op.name in _INDEXED else self.meets(op)
            span = found
        assert span is not None
        ordered = op.kernel.ordered if op.kernel is not None else ()
        summed = span.factor in rule.reduction
        # A sum that devices cannot share, micro-batches can.
        if span.factor in (*(() if summed else rule.replicate), *rule.permutation, *ordered):
            raise self.mixes(op, next(f for f in forms if isinstance(f, Split)))
        self.check_indexed(op, rule.operands, span, forms)
        results = [place(rule, dims, span) for dims in rule.results]
        kind = self.reduction(scope, op, forms) if summed and op.kernel is None else None
        given: list[Form] = [kind or r or WHOLE for r in results]
        if op.kernel is not None:
            given = self.of_kernel(op, results, summed)
        # What a manual computation makes without its batch does not depend on it.
        if (
            kind is None
            and op.manual is None
            and any(isinstance(f, Whole) and values[v].elements for v, f in zip(op.results, given, strict=True))
        ):
            raise self.mixes(op, next(f for f in forms if isinstance(f, Split)))
        read: list[Form] = []
        for i, (v, form) in enumerate(zip(op.operands, forms, strict=True)):
            if isinstance(form, Partial) and summed and i == 0 and op.name == "stablehlo.scatter" and form == kind:
                pass  # an accumulating scatter may add to a sum; nothing else takes sums and examples together
            elif isinstance(form, Partial | OwnEstimate):
                start = kind is not None and op.name not in CONTRACTIONS and i == _start(op) % len(forms)
                if start or not self.estimates.can(form):
                    raise NeedsSync(k, v)
                part = place(rule, rule.operands[i], span)
                if part is not None:
                    scope.demand(v, part, k)
                form = part or ESTIMATE
            elif isinstance(form, Whole) and (part := place(rule, rule.operands[i], span)) is not None:
                scope.demand(v, part, k)
                form = part
            read.append(form)
        return self.made(op, read, given)

    def of_kernel(self, op: Op, results: Sequence[Split | None], summed: bool) -> list[Form]:
        """Of a kernel's results those with the batch are split, others sums over it, or the largest of it."""
        assert op.kernel is not None
        given: list[Form] = []
        for i, split in enumerate(results):
            if split is not None:
                given.append(split)
            elif i in op.kernel.maxima:
                given.append(Partial("maximum"))
            else:
                given.append(Partial("add") if summed and self.graph.values[op.results[i]].elements else WHOLE)
        return given

    def check_indexed(self, op: Op, operands: Sequence[Sequence[Sequence[int]]], span: Span, forms: list[Form]) -> None:
        """Refuses look-ups and updates of examples by number, which are numbers in the whole batch."""
        inside = [any(span.factor in dim for dim in dims) for dims in operands]
        looked_up = op.name == "stablehlo.gather" and inside[0] and not inside[1] and self._reduces(op, span)
        updated = op.name == "stablehlo.scatter" and not inside[len(operands) - 1]
        if looked_up or updated:
            raise self.indexes(op)

    def indexes(self, op: Op) -> Refusal:
        """A look-up or update of examples by number."""
        verb = "looks up" if op.name == "stablehlo.gather" else "updates"
        remedy = "write it per example, as in take_along_axis or jax.vmap, instead of indexing with arange"
        return Refusal(op.index, f"'{op.name}' {verb} examples by their number in the batch", ((None, remedy),))

    def meets(self, op: Op) -> Refusal:
        """An op in which examples meet others."""
        message = f"'{op.name}' brings examples together with other examples: its operands hold them along different"
        return Refusal(op.index, f"{message} dimensions", ((None, REGROUP),))

    def _reduces(self, op: Op, span: Span) -> bool:
        rule = rule_of(self.graph, op)
        return rule is not None and span.factor in rule.reduction

    def reduction(self, scope: Scope, op: Op, forms: Sequence[Form]) -> Partial:
        """How the parts of a result that is summed over the batch are put together."""
        k = op.index
        kind = "add" if op.name in CONTRACTIONS else COMBINERS.get(self.facts.combiners.get(k, ""))
        if kind is None or len(op.results) != 1:
            raise Refusal(
                k,
                f"'{op.name}' combines all examples, and not by add, multiply, maximum, minimum, and, or, xor",
                ((None, REGROUP),),
            )
        if op.name in CONTRACTIONS:
            return Partial(kind)
        start = _start(op)
        neutral = kind in _REPEATED or k in self.facts.neutral
        neutral = neutral or (kind != "multiply" and scope.is_zero(op.operands[start]))
        if isinstance(forms[start], Whole) and not neutral:
            raise Onto(k, op.name)
        return Partial(kind)

    def mixes(self, op: Op, split: Split) -> Refusal:
        """An op that needs several examples at once."""
        return Refusal(
            op.index,
            f"'{op.name}' needs all examples at once: it works along dimension {split.dim}, which holds the batch",
            ((None, _PARTS if op.name in _TAKING else REGROUP),),
        )


def _start(op: Op) -> int:
    """Which operand of a reduction or scatter it starts from."""
    return 0 if op.name == "stablehlo.scatter" else -1
