"""A training step as a loop over micro-batches: what is split, what is summed, and what waits for the sums.

Owns @main itself: which phase each operation runs in, and why a step is refused. See `flow` for single operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from rhino.microbatch import localise
from rhino.microbatch.estimates import Estimates, bits
from rhino.microbatch.facts import BatchFacts
from rhino.microbatch.flow import BARRIER, BatchFlow
from rhino.microbatch.forms import (
    AFTER,
    ESTIMATE,
    WHOLE,
    After,
    Coarser,
    Form,
    NeededWhole,
    NeedsSync,
    NotSyncFree,
    OwnEstimate,
    Partial,
    Refusal,
    Split,
    Whole,
)
from rhino.microbatch.linear import is_late
from rhino.microbatch.plan import MicrobatchPlan, OpCopy, Ref, Step, copied, needed
from rhino.microbatch.remedies import AFTER_ALL, ASK, SUMS, indivisible, not_sync_free
from rhino.microbatch.scope import Scope
from rhino.microbatch.single import whole_batch
from rhino.program.data import Graph


def split_microbatches(graph: Graph, facts: BatchFacts, count: int, estimates: bool = False) -> MicrobatchPlan:
    """The plan for `count` micro-batches. With `estimates`, sums that examples need are those of their micro-batch.

    One micro-batch is the batch: no step is refused for what its examples need of each other.

    Raises:
      Refusal: the step needs all examples at once somewhere, or the batch is not divisible.
    """
    batch = _batch_arguments(graph)
    try:
        return _split(graph, facts, batch, count, estimates)
    except NeededWhole:
        raise
    except Refusal as refusal:
        if count > 1:
            raise
        return whole_batch(graph, facts, batch, refusal)


def _split(graph: Graph, facts: BatchFacts, batch: Sequence[int], count: int, estimates: bool) -> MicrobatchPlan:
    size = graph.values[batch[0]].shape[0]
    group, grouper = 1, -1
    early: dict[int, list[int]] = {}
    while True:
        if size % (group * count):
            raise indivisible(graph, batch[0], size, count, group, grouper)
        main = _Main(graph, facts, count, group, early, estimates)
        try:
            return main.run(batch)
        except Coarser as coarser:
            group, grouper = group * coarser.times, coarser.op
        except NotSyncFree as refusal:
            # A count of tokens, say: made of the data alone, so that the whole batch can be asked before the loop.
            found = None if refusal.made in early or refusal.made < 0 else main.made_of_data(refusal.made)
            if found is None:
                raise
            early[refusal.made] = found


def batch_size(shapes: Iterable[Sequence[int]]) -> int:
    """How many examples a batch of arrays with these shapes has: the leading size of most of its elements.

    -1 where none has a dimension.
    """
    elements: dict[int, int] = {}
    for shape in shapes:
        if shape:
            elements[shape[0]] = elements.get(shape[0], 0) + prod(shape)
    return max(elements, key=lambda n: (elements[n], n), default=-1)


def _batch_arguments(graph: Graph) -> list[int]:
    """The arguments that hold a batch: those with the role, and the leading size of most of their elements."""
    given = [a.value for a in graph.arguments if a.role == "batch" and graph.values[a.value].shape]
    if not given:
        remedy = "run rhino-classify-args first, or set rhino.role"
        raise Refusal(-1, "no argument has the role 'batch'", ((None, remedy),))
    size = batch_size(graph.values[v].shape for v in given)
    return [v for v in given if graph.values[v].shape[0] == size]


class _Main:
    """The analysis of @main for one size of groups."""

    def __init__(
        self, graph: Graph, facts: BatchFacts, count: int, group: int, early: Mapping[int, list[int]], estimates: bool
    ) -> None:
        self.graph, self.facts, self.count, self.group, self.early = graph, facts, count, group, early
        self.estimates = Estimates(estimates)
        self.flow = BatchFlow(graph, facts, count, self.estimates)
        self.scope = Scope(graph)
        self.origin: dict[int, int] = {}
        self.after: list[int] = []
        self.before: list[int] = []
        # Whole values that only the loop computes, together with what is split.
        self.inside: set[int] = set()
        self.barriers: list[tuple[OpCopy, bool]] = []
        # What a loop over layers makes of estimates: it is not known of all examples, not even in the end.
        self.loose: set[int] = set()
        self.checked = 0

    def run(self, batch: Sequence[int]) -> MicrobatchPlan:
        """The plan."""
        graph, scope = self.graph, self.scope
        for argument in graph.arguments:
            scope.forms[argument.value] = WHOLE
        for v in batch:
            split = Split(0, 1, graph.values[v].shape[0] // self.group, self.group)
            scope.forms[v] = split
            scope.demand(v, split, -1)
        top = tuple(op.index for op in graph.ops if op.parent < 0)
        for k in self.flow.reads.live(top, graph.outputs):
            self.op(k)
        try:
            localise.meet(self.flow, scope, frozenset())
        except NeedsSync as stop:
            raise self.not_sync_free(stop.op, stop.value) from None
        self.late()
        return self.plan(batch)

    def op(self, k: int) -> None:
        """Puts an op before the loop, into it, or after it."""
        op, scope = self.graph.ops[k], self.scope
        forms = self.flow.forms(scope, k)
        if k in self.early:
            scope.forms.update(dict.fromkeys(op.results, WHOLE))
            self.before += self.early[k]
            return
        whole = all(isinstance(f, Whole) for f in forms)
        if whole and self.inside.isdisjoint(self.flow.reads.of(k)):
            self.flow.zero(scope, op)
            scope.forms.update(dict.fromkeys(op.results, WHOLE))
            self.before.append(k)
        elif k in self.facts.host:
            # It sees whole values, and once: results of the step, as it were.
            scope.forms.update(dict.fromkeys(op.results, AFTER))
            self.after.append(k)
            self.trace(k)
        elif op.name == BARRIER:
            self.barrier(k, forms)
        elif not any(isinstance(f, After) for f in forms) and not (
            k in self.facts.regions
            and any(isinstance(f, OwnEstimate) for f in forms)
            and not any(isinstance(f, Split) for f in forms)
        ):
            # A loop that has no examples is the optimizer's, say, and waits.
            self.estimates.inside = any(isinstance(f, Split) for f in forms)
            try:
                self.flow.step(scope, k)
            except NeedsSync as stop:
                if any(isinstance(f, Split) for f in forms):
                    raise self.not_sync_free(stop.op, stop.value) from None
                self.wait(k)
            else:
                self.trace(k)
                self.check_data()
                if k in self.facts.regions:
                    self.loose.update(v for v in op.results if isinstance(scope.form(v), OwnEstimate))
                self.inside.update(v for v in op.results if isinstance(scope.form(v), Whole))
        elif any(isinstance(f, Split) for f in forms):
            at = next(v for v, f in zip(self.flow.reads.of(k), forms, strict=True) if isinstance(f, After))
            raise self.not_sync_free(k, at)
        else:
            self.wait(k)

    def check_data(self) -> None:
        """Starts again with sums of the data alone taken before the loop: these need no estimate."""
        new = self.estimates.used & ~self.checked
        self.checked |= new
        for k in bits(new):
            if k not in self.early and self.made_of_data(k) is not None:
                raise NotSyncFree(k, k, "", ())

    def made_of_data(self, k: int) -> list[int] | None:
        """The ops that op k's results are made by, itself included, if they are cheap and read no parameters."""
        graph = self.graph
        data = {a.value for a in graph.arguments if a.role == "batch"}
        found: set[int] = set()
        pending = [k]
        while pending:
            at = pending.pop()
            op = graph.ops[at]
            if op.parent >= 0 or at in self.facts.regions or op.name in localise.DEAR or at in self.after:
                return None
            found.add(at)
            for v in op.operands:
                producer = graph.values[v].producer
                if producer < 0 and v not in data and graph.values[v].shape:
                    return None
                if producer >= 0 and producer not in found:
                    pending.append(producer)
        return sorted(found)

    def wait(self, k: int) -> None:
        """Op k runs after the loop."""
        op, read = self.graph.ops[k], self.flow.reads.of(k)
        forms = [self.scope.form(v) for v in read]
        simple = k not in self.facts.regions and k not in self.facts.captures
        if simple and all(isinstance(f, Whole) or self.estimates.can(f) for f in forms):
            self.scope.forms.update(dict.fromkeys(op.results, ESTIMATE))
            refs = [(v, ESTIMATE) for v in op.results]
            self.estimates.note(k, zip(read, forms, strict=True), refs, waits=True)
        else:
            self.scope.forms.update(dict.fromkeys(op.results, AFTER))
        self.after.append(k)
        self.trace(k)

    def trace(self, k: int) -> None:
        """Remembers where what was summed over the batch was first."""
        for v in self.graph.ops[k].results:
            if not isinstance(self.scope.form(v), Split | Whole):
                before = [self.origin[u] for u in self.flow.reads.of(k) if u in self.origin]
                self.origin[v] = before[0] if before else k

    def not_sync_free(self, k: int, v: int) -> NotSyncFree:
        """The error for examples that need a result of all examples."""
        made = self.origin.get(v, self.graph.values[v].producer)
        remedy = SUMS if self.estimates.allowed else ASK if self.adds_up(made) else AFTER_ALL
        return not_sync_free(self.graph, self.facts, k, made, remedy)

    def adds_up(self, k: int) -> bool:
        """Whether an op's results are sums over the batch."""
        found = [self.scope.form(v) for v in self.graph.ops[k].results] if k >= 0 else []
        return bool(found) and all(isinstance(f, Partial) and f.kind == "add" for f in found)

    def barrier(self, k: int, forms: Sequence[Form]) -> None:
        """A barrier orders and computes nothing: it is cut into what is in the loop, before it and after it."""
        op, scope = self.graph.ops[k], self.scope
        scope.forms.update(zip(op.results, forms, strict=True))
        inside = tuple(i for i, f in enumerate(forms) if isinstance(f, Split | Partial | OwnEstimate))
        for kind in (Whole, After | OwnEstimate):
            at = tuple(i for i, f in enumerate(forms) if isinstance(f, kind))
            if at:
                self.barriers.append((self.piece(k, at), kind is not Whole))
        if inside:
            piece = self.piece(k, inside)
            for v, form in piece.operands:
                if isinstance(form, OwnEstimate):
                    scope.demand(v, form, k)
            scope.given.update(v for v, form in piece.results if isinstance(form, OwnEstimate))
            for i in inside:
                self.estimates.merge(op.results[i], op.operands[i])
            scope.add(k, piece)
        self.trace(k)

    def piece(self, k: int, positions: tuple[int, ...]) -> OpCopy:
        """A barrier with some of its operands."""
        op, scope = self.graph.ops[k], self.scope
        operands: tuple[Ref, ...] = tuple((op.operands[i], scope.form(op.operands[i])) for i in positions)
        results: tuple[Ref, ...] = tuple((op.results[i], scope.form(op.results[i])) for i in positions)
        return OpCopy(k, operands, results, positions=positions)

    def late(self) -> None:
        """Moves operations on single sums behind the loop, where nothing in the loop needs their results."""
        graph, scope = self.graph, self.scope
        inside: set[int] = set()
        moved: set[int] = set()
        for step in reversed(scope.steps()):
            if not isinstance(step, OpCopy):
                inside.update(v for v, _ in step.reads())
                continue
            op = graph.ops[step.op]
            partial = [v for v, form in step.operands if isinstance(form, Partial)]
            alone = len(op.operands) > 0 and len(set(partial)) == 1 and len(step.operands) == len(op.operands)
            if (
                alone
                and not step.bodies
                and op.name != BARRIER
                and all(isinstance(form, Partial) for _, form in step.results)
                and not any(isinstance(form, Split | OwnEstimate) for _, form in step.operands)
                and inside.isdisjoint(op.results)
                and self.inside.isdisjoint(op.operands)
                and is_late(graph, op, partial[0])
            ):
                moved.add(op.index)
                continue
            inside.update(v for v, _ in step.reads())
        if moved:
            scope.drop(moved)
            self.after = sorted({*self.after, *moved})
            for k in sorted(moved):
                scope.forms.update(dict.fromkeys(graph.ops[k].results, AFTER))

    def plan(self, batch: Sequence[int]) -> MicrobatchPlan:
        """Everything put together, without what is not needed."""
        graph, scope = self.graph, self.scope
        after, waiting = self.finished()
        read = [v for k in after for v in self.flow.reads.of(k)]
        read += [v for copy in waiting for v, _ in copy.operands]
        read += graph.outputs
        early = {v for k in self.before for v in graph.ops[k].results}
        sums: dict[int, Partial] = {}
        stacks: dict[int, Split] = {}
        for v in read:
            form = scope.form(v)
            if isinstance(form, Partial):
                sums[v] = form
            elif isinstance(form, Split) and graph.values[v].producer >= 0 and v not in early:
                stacks[v] = form
        outside = {v for v in read if isinstance(scope.form(v), Whole) or v in early}
        loop = needed(scope.steps(), [*sums.items(), *stacks.items()], self.facts.effects)
        outside.update(self.outer(loop))
        pieces = {copy.op: copy for copy, late in self.barriers if not late}
        before: list[int] = []
        kept: list[tuple[OpCopy, bool]] = []
        for k in sorted({*self.before, *pieces}, reverse=True):
            if k not in self.facts.effects and outside.isdisjoint(graph.ops[k].results):
                continue
            if k in pieces:
                kept.append((pieces[k], False))
                outside.update(v for v, _ in pieces[k].operands)
            else:
                before.append(k)
                outside.update(self.flow.reads.of(k))
        if loose := tuple(dict.fromkeys(v for v in read if v in self.loose)):
            raise NeededWhole(graph.values[loose[0]].producer, loose)
        for v in read:
            if v in self.inside:
                raise Refusal(
                    graph.values[v].producer,
                    "this loop works on the batch, and also makes a value that is needed without it",
                    ((None, "compute what does not depend on the batch in a loop of its own"),),
                )
        return MicrobatchPlan(
            count=self.count,
            group=self.group,
            loop=loop,
            after=after,
            sums=sorted(sums.items(), key=lambda item: item[0]),
            stacks=sorted(stacks.items(), key=lambda item: item[0]),
            before=before[::-1],
            barriers=[*kept[::-1], *((copy, True) for copy in waiting)],
        )

    def finished(self) -> tuple[list[int], list[OpCopy]]:
        """What comes after the loop: ops and parts of barriers that something there needs, and not only estimates."""
        waiting = {copy.op: copy for copy, late in self.barriers if late}
        wanted = set(self.graph.outputs)
        ops: list[int] = []
        pieces: list[OpCopy] = []
        for k in sorted({*self.after, *waiting}, reverse=True):
            made = {v for v, _ in waiting[k].results} if k in waiting else {*self.graph.ops[k].results}
            if k not in self.facts.effects and wanted.isdisjoint(made):
                continue
            if k in waiting:
                pieces.append(waiting[k])
                wanted.update(v for v, _ in waiting[k].operands)
            else:
                ops.append(k)
                wanted.update(self.flow.reads.of(k))
        return ops[::-1], pieces[::-1]

    def outer(self, loop: Sequence[Step]) -> set[int]:
        """The whole values that the loop reads from before it."""
        made = {ref for step in loop for ref in step.makes()}
        captured = {v for k in copied(loop) for v in self.facts.captures.get(k, ())}
        return captured | {
            ref[0] for step in loop for ref in step.reads() if isinstance(ref[1], Whole) and ref not in made
        }
