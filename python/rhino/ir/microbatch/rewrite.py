"""Writes a plan of micro-batches into @main: the loop, its sums and stacked results, and the order around it.

Owns the structure; single operations are made by `split_microbatch_ops`. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect.attributes import RhinoMicrobatches
from rhino.dialect.constants import identity, splat
from rhino.dialect.counted_loop import counted_loop
from rhino.dialect.reductions import APPLY, together
from rhino.ir.microbatch.lifted import leading, make_local, repeated
from rhino.ir.microbatch.ops import Types, make, reshaped
from rhino.microbatch import CopiedRegion, MicrobatchPlan, OpCopy, Partial, Scaled, Split, Step, TakePart
from rhino.microbatch.flow import BARRIER
from rhino.microbatch.forms import ESTIMATE, WHOLE
from rhino.microbatch.plan import Ref
from rhino.program.data import Graph
from rhino.program.element_types import NARROW_FLOATS


class MicrobatchRewriter:
    """One plan written into one function, whose values and ops are given in the graph's numbering.

    Each of the values `local` is kept as so many local sums.
    """

    def __init__(
        self,
        main: Any,
        graph: Graph,
        values: list[Any],
        ops: list[Any],
        plan: MicrobatchPlan,
        sums: int = 1,
        local: frozenset[Ref] = frozenset(),
    ) -> None:
        self.main, self.graph, self.values, self.ops, self.plan = main, graph, values, ops, plan
        self.sums, self.local = sums, local
        self.types = Types(plan.count, graph)
        self.scopes: list[dict[Ref, Any]] = []
        self.apart: dict[Ref, tuple[Any, int]] = {}

    def run(self) -> None:
        """Rewrites the function."""
        block = self.main.regions[0].blocks[0]
        self.end = block.operations[len(block.operations) - 1].operation
        with self.main.location:
            with ir.InsertionPoint(self.end):
                self.zero = splat(ir.RankedTensorType.get([], ir.IntegerType.get_signless(32)), 0)
            self.pieces(after=False)
            results = self.loop()
            moved = [self.ops[k] for k in self.plan.after]
            for op in moved:
                op.move_before(self.end)
            with ir.InsertionPoint(moved[0] if moved else self.end):
                self.finish(results)
            self.pieces(after=True)
        self.erase()

    def pieces(self, after: bool) -> None:
        """The parts of optimization barriers outside of the loop."""
        for copy, late in self.plan.barriers:
            if late != after:
                continue
            op = self.ops[copy.op]
            operands = [op.operands[i] for i in copy.positions]
            # What comes after the loop has been moved; the barrier goes before its first reader there.
            with ir.InsertionPoint(self.first_reader(copy) if after else op):
                made = make(self.types, op, copy, operands, None)
            for (v, _), result in zip(copy.results, made, strict=True):
                self.values[v].replace_all_uses_with(result)
                self.values[v] = result

    def first_reader(self, copy: OpCopy) -> Any:
        """The first op after the loop that comes after a barrier in the original program."""
        return next((self.ops[k] for k in self.plan.after if k > copy.op), self.end)

    # The loop.

    def loop(self) -> Sequence[Any]:
        """Makes the loop before the end of @main; returns its results but for the counter."""
        plan = self.plan
        with ir.InsertionPoint(self.end):
            inits = [self.start(v, partial) for v, partial in plan.sums]
            inits += [self.buffer(v, split) for v, split in plan.stacks]
            made = {ref for step in plan.loop for ref in step.makes()}
            for step in plan.loop:
                if isinstance(step, TakePart) and (step.value, WHOLE) not in made:
                    self.prepare(step)
            loop = counted_loop(self.zero, plan.count, inits, self.trip)
        estimates = {"statistics": "micro-batch"} if plan.estimates else {}
        local = {"sums": self.sums} if self.local else {}
        RhinoMicrobatches.attach(loop, {"count": plan.count, **estimates, **local})
        return list(loop.results)[1:]

    def trip(self, index: Any, carried: Sequence[Any]) -> list[Any]:
        """Makes one micro-batch; returns the sums and stacks with what is of it."""
        plan, self.index = self.plan, index
        self.scopes.append({})
        waiting = {ref: n for n, ref in enumerate(plan.sums)}
        totals: dict[int, Any] = {}
        for step in plan.loop:
            self.step(step)
            # A part that is added up as soon as it is made takes memory no longer.
            for ref in step.results if isinstance(step, OpCopy) else ():
                if ref in waiting:
                    totals[waiting[ref]] = self.add(carried[waiting[ref]], self.value(ref), ref[1])
        following = []
        for n, (v, partial) in enumerate(plan.sums):
            following.append(totals[n] if n in totals else self.add(carried[n], self.value((v, partial)), partial))
        for buffer, (v, split) in zip(carried[len(plan.sums) :], plan.stacks, strict=True):
            following.append(self.put(buffer, self.value((v, split)), v, split))
        self.scopes.pop()
        return following

    def prepare(self, cut: TakePart) -> None:
        """Before the loop: the whole value with a dimension for the micro-batches."""
        value = self.values[cut.value]
        shape, at = self.types.apart(value.type.shape, cut.split)
        with value.location:
            self.apart[cut.value, cut.split] = (reshaped(value, shape), at)

    def step(self, step: Step) -> None:
        """One step, at the insertion point."""
        if isinstance(step, TakePart):
            with self.values[step.value].location:
                self.scopes[-1][step.value, step.split] = self.cut(step)
            return
        if isinstance(step, Scaled):
            part = self.value((step.value, step.form))
            with self.values[step.value].location:
                self.scopes[-1][step.value, ESTIMATE] = stablehlo.MulOp(part, splat(part.type, self.plan.count)).result
            return
        op = self.ops[step.op]
        operands = [self.value(ref) for ref in step.operands]
        with op.location:
            if step.bodies:
                made = self.regions(op, step, operands)
            elif not self.local.isdisjoint(step.results) and op.name != BARRIER:
                given = [ref in self.local for ref in step.operands]
                made = [make_local(op, step, operands, given, self.sums)]
            else:
                made = make(self.types, op, step, operands, self.index)
        self.scopes[-1].update(zip(step.results, made, strict=True))

    def value(self, ref: Ref) -> Any:
        """A value in a form; what is whole and was not made in the loop is read from outside."""
        for scope in reversed(self.scopes):
            if ref in scope:
                return scope[ref]
        assert ref[1] == WHOLE, f"value {ref} was not made"
        return self.values[ref[0]]

    def cut(self, cut: TakePart) -> Any:
        """The micro-batch's part of a whole value."""
        known = self.apart.get((cut.value, cut.split))
        if known is None:
            value = self.value((cut.value, WHOLE))
            shape, at = self.types.apart(value.type.shape, cut.split)
            known = (reshaped(value, shape), at)
        source, at = known
        sizes = list(source.type.shape)
        sizes[at] = 1
        starts = [self.zero] * len(sizes)
        starts[at] = self.index
        part = stablehlo.DynamicSliceOp(source, starts, ir.DenseI64ArrayAttr.get(sizes)).result
        return reshaped(part, self.types.of(self.values[cut.value].type, cut.split).shape)

    def regions(self, op: Any, step: OpCopy, operands: Sequence[Any]) -> Sequence[Any]:
        """A loop or branch with its bodies made again."""
        types = [self.type(ref) for ref in step.results]
        is_loop = bool(step.bodies[0].args)
        if is_loop:
            operands = [self.as_local(v, t) for v, t in zip(operands, types, strict=True)]
        attributes = {name: op.attributes[name] for name in _names(op)}
        new = ir.Operation.create(
            op.name, results=types, operands=list(operands), attributes=attributes, regions=len(step.bodies)
        )
        for n, (region, body) in enumerate(zip(new.regions, step.bodies, strict=True)):
            self.body(region, body, types if n or not is_loop else ())
        return list(new.results)

    def type(self, ref: Ref) -> Any:
        """The type of a value in a form."""
        kind = self.types.of(self.values[ref[0]].type, ref[1])
        return leading(kind, self.sums) if ref in self.local else kind

    def as_local(self, value: Any, kind: Any) -> Any:
        """What is zero for all local sums as a value of this type; others have it."""
        return repeated(value, self.sums) if len(value.type.shape) < len(kind.shape) else value

    def body(self, region: Any, body: CopiedRegion, results: Sequence[Any]) -> None:
        """One region; `results` are the types of what its op makes, none for a condition."""
        kinds = [self.type(ref) for ref in body.args]
        block = region.blocks.append(*kinds, arg_locs=[self.values[v].location for v, _ in body.args])
        self.scopes.append(dict(zip(body.args, block.arguments, strict=True)))
        with ir.InsertionPoint(block):
            for step in body.steps:
                self.step(step)
            yields = [self.value(ref) for ref in body.yields]
            if results:
                yields = [self.as_local(v, t) for v, t in zip(yields, results, strict=True)]
            stablehlo.ReturnOp(yields)
        self.scopes.pop()

    # Sums and stacked results.

    def start(self, v: int, partial: Partial) -> Any:
        """Where an accumulation begins."""
        return splat(self.sum_type(v, partial), identity(partial.kind, self.values[v].type.element_type))

    def sum_type(self, v: int, partial: Partial) -> Any:
        """The type in which a value is accumulated: many narrow floats are added up in float32, for accuracy."""
        kind = self.type((v, partial))
        if partial.kind == "add" and str(kind.element_type) in NARROW_FLOATS:
            return ir.RankedTensorType.get(kind.shape, ir.F32Type.get())
        return kind

    def add(self, total: Any, part: Any, partial: Partial) -> Any:
        """One more micro-batch's part."""
        if part.type != total.type:
            part = stablehlo.ConvertOp(total.type, part).result
        return APPLY[partial.kind](total, part).result

    def buffer(self, v: int, split: Split) -> Any:
        """Where the parts of a result are collected."""
        kind = self.values[v].type
        shape, _ = self.types.apart(kind.shape, split)
        return splat(ir.RankedTensorType.get(shape, kind.element_type), 0)

    def put(self, buffer: Any, part: Any, v: int, split: Split) -> Any:
        """One micro-batch's part in its place."""
        shape, at = self.types.apart(self.values[v].type.shape, split, 1)
        starts = [self.zero] * len(shape)
        starts[at] = self.index
        return stablehlo.DynamicUpdateSliceOp(buffer, reshaped(part, shape), starts).result

    def finish(self, results: Sequence[Any]) -> None:
        """After the loop: sums and collected results take the places of the original values."""
        for result, ref in zip(results, [*self.plan.sums, *self.plan.stacks], strict=True):
            old = self.values[ref[0]]
            if ref in self.local:
                with old.location:
                    result = together(result)
            if result.type.element_type != old.type.element_type:
                result = stablehlo.ConvertOp(old.type, result).result
            old.replace_all_uses_with(reshaped(result, old.type.shape))

    def erase(self) -> None:
        """Removes the ops that are now in the loop, and those that nothing needs."""
        kept = {*self.plan.before, *self.plan.after}
        for record in reversed(self.graph.ops):
            if record.parent < 0 and record.index not in kept:
                self.ops[record.index].erase()


def _names(op: Any) -> list[str]:
    return [attribute if isinstance(attribute, str) else attribute.name for attribute in op.attributes]
