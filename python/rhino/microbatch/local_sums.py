"""Which sums over the batch can be kept as several local ones, each over its share of a micro-batch's examples.

Such a sum has one more dimension in front, of local sums, which devices can share out: nothing is sent for it before
the loop over micro-batches is over (docs/design/microbatches.md, "Local sums"). Owns which values these are. How they
are computed `rhino.ir.microbatch.lifted` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rhino.microbatch.facts import BatchFacts
from rhino.microbatch.forms import Form, Partial, Split
from rhino.microbatch.plan import MicrobatchPlan, OpCopy, Ref, Step
from rhino.program.data import Graph
from rhino.program.disjoint import DisjointSets

# Linear operations on sums, which do the same to each local one; "whole" operands are the same for all of them.
_ALIKE = frozenset(
    """stablehlo.transpose stablehlo.reshape stablehlo.broadcast_in_dim stablehlo.slice stablehlo.dynamic_slice
    stablehlo.reverse stablehlo.concatenate stablehlo.select stablehlo.dynamic_update_slice stablehlo.negate
    stablehlo.add stablehlo.subtract stablehlo.convert stablehlo.pad stablehlo.multiply stablehlo.divide
    stablehlo.reduce""".split()
)
_BARRIER = "stablehlo.optimization_barrier"


def local_sums(graph: Graph, facts: BatchFacts, plan: MicrobatchPlan, count: int) -> frozenset[Ref]:
    """The sums by addition in the loop that can be `count` local ones, wherever they are made and read there.

    Of more than one micro-batch: in a step as one, what crosses the end of the loop may be no sum of examples at all.
    Where one that is computed from others, or carried with them, cannot be, these are not either.
    """
    found = _LocalSums(graph, facts, plan.count, count)
    found.steps(plan.loop)
    return found.run()


class _LocalSums:
    """Sums that are joined by what is done to them: all of a set, or none."""

    def __init__(self, graph: Graph, facts: BatchFacts, microbatches: int, count: int) -> None:
        self.graph, self.facts, self.microbatches, self.count = graph, facts, microbatches, count
        self.numbers: dict[Ref, int] = {}
        self.joined: list[tuple[int, int]] = []
        self.barred: list[int] = []

    def run(self) -> frozenset[Ref]:
        sets = DisjointSets(len(self.numbers))
        for a, b in self.joined:
            sets.join(a, b)
        barred = {sets.find(n) for n in self.barred}
        return frozenset(ref for ref, n in self.numbers.items() if sets.find(n) not in barred)

    def steps(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if isinstance(step, OpCopy):
                self.copy(step)
            else:
                self.bar(step.reads())

    def copy(self, step: OpCopy) -> None:
        if step.bodies:
            self.nested(step)
        elif self.graph.ops[step.op].name == _BARRIER:
            for pair in zip(step.operands, step.results, strict=True):
                self.join(pair)
        else:
            refs = (*step.operands, *step.results)
            self.join(refs)
            made = any(isinstance(form, Split) for _, form in step.operands)
            if not (self.can_make(step) if made else self.can_keep(step)):
                self.bar(refs)

    def nested(self, step: OpCopy) -> None:
        """A loop carries what it is given, and yields it; branches only yield."""
        is_loop = bool(step.bodies[0].args)
        for i, result in enumerate(step.results):
            carried = [step.operands[i], *(body.args[i] for body in step.bodies)] if is_loop else []
            yields = [body.yields[i] for body in (step.bodies[-1:] if is_loop else step.bodies)]
            self.join((result, *carried, *yields))
        for body in step.bodies:
            self.steps(body.steps)

    def can_keep(self, step: OpCopy) -> bool:
        """Whether an op on sums does the same to each local one."""
        op = self.graph.ops[step.op]
        return op.name in _ALIKE and len(op.results) == 1 and any(_is_sum(form) for _, form in step.operands)

    def can_make(self, step: OpCopy) -> bool:
        """Whether an op on examples can sum them in groups."""
        op, facts = self.graph.ops[step.op], self.facts
        split = {i: form for i, (_, form) in enumerate(step.operands) if isinstance(form, Split)}
        if any(f.before > 1 or (f.count // self.microbatches) % self.count for f in split.values()):
            return False
        if op.name == "stablehlo.dot_general":
            return len(split) == 2
        if facts.combiners.get(op.index) != "stablehlo.add" or op.index in facts.captures:
            return False
        if op.name == "stablehlo.reduce":
            return len(op.operands) == 2
        return op.name == "stablehlo.scatter" and len(op.operands) == 3 and 1 in split and 2 in split

    def join(self, refs: Sequence[Ref]) -> None:
        numbers = list(self.number(refs))
        self.joined += [(numbers[0], n) for n in numbers[1:]]

    def bar(self, refs: Sequence[Ref]) -> None:
        self.barred += self.number(refs)

    def number(self, refs: Sequence[Ref]) -> Iterator[int]:
        for v, form in refs:
            if _is_sum(form):
                yield self.numbers.setdefault((v, form), len(self.numbers))


def _is_sum(form: Form) -> bool:
    """Whether a value in this form is what addition makes of a micro-batch."""
    return isinstance(form, Partial) and form.kind == "add"
