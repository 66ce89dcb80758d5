"""The analysis on programs written by hand: what is in the loop and in which form, without MLIR."""

from __future__ import annotations

import pytest

from rhino.microbatch import BatchFacts, OpCopy, Partial, Refusal, Split, TakePart, Whole, split_microbatches
from rhino.microbatch.factors import Span, find, place
from rhino.microbatch.forms import Coarser
from rhino.program.data import Argument, Graph, Op, Rule, Value


class Program:
    """A graph under construction."""

    def __init__(self) -> None:
        self.graph = Graph()

    def argument(self, *shape: int, role: str = "other") -> int:
        """One more argument."""
        self.graph.values.append(Value(len(self.graph.values), shape, "f32", -1))
        self.graph.arguments.append(Argument(len(self.graph.values) - 1, f"a{len(self.graph.arguments)}", role))
        return len(self.graph.values) - 1

    def op(self, name: str, operands: tuple[int, ...], shape: tuple[int, ...], rule: Rule | None) -> int:
        """One more op with one result."""
        v, k = len(self.graph.values), len(self.graph.ops)
        self.graph.values.append(Value(v, shape, "f32", k))
        self.graph.ops.append(Op(k, f"stablehlo.{name}", operands, (v,), rule))
        return v

    def same(self, name: str, *operands: int) -> int:
        """An element-wise op."""
        shape = self.graph.values[operands[0]].shape
        dims = tuple((i,) for i in range(len(shape)))
        return self.op(name, operands, shape, Rule(shape, (dims,) * len(operands), (dims,)))

    def total(self, v: int) -> int:
        """A contraction of a value's first dimension with itself."""
        b, n = self.graph.values[v].shape
        rule = Rule((n, n, b), (((2,), (0,)), ((2,), (1,))), (((0,), (1,)),), reduction=(2,))
        return self.op("dot_general", (v, v), (n, n), rule)


def test_what_is_in_the_loop_and_what_is_not() -> None:
    program = Program()
    w, x = program.argument(8, 3), program.argument(8, 3, role="batch")
    scaled = program.same("sqrt", w)
    y = program.same("multiply", x, scaled)
    gram = program.total(y)
    last = program.same("negate", gram)
    program.graph.outputs = (last, y)
    plan = split_microbatches(program.graph, BatchFacts(), 4)
    part = Split(0, 1, 8, 1)
    # The square root has the batch's dimension too, and is computed in parts.
    assert plan.loop == [
        TakePart(x, part),
        TakePart(w, part),
        OpCopy(0, ((w, part),), ((scaled, part),)),
        OpCopy(1, ((x, part), (scaled, part)), ((y, part),)),
        OpCopy(2, ((y, part), (y, part)), ((gram, Partial("add")),)),
    ]
    assert (plan.sums, plan.stacks, plan.after, plan.before) == ([(gram, Partial("add"))], [(y, part)], [3], [])


def test_ops_without_the_batch_come_before() -> None:
    program = Program()
    w, x = program.argument(3, 5), program.argument(8, 3, role="batch")
    cast = program.same("sqrt", w)
    rule = Rule((8, 5, 3), (((0,), (2,)), ((2,), (1,))), (((0,), (1,)),), reduction=(2,))
    y = program.op("dot_general", (x, cast), (8, 5), rule)
    program.graph.outputs = (program.total(y), program.same("negate", w))
    plan = split_microbatches(program.graph, BatchFacts(), 2)
    assert plan.before == [0, 3]
    assert [step.op for step in plan.loop if isinstance(step, OpCopy)] == [1, 2]
    assert plan.loop[1].reads() == ((x, Split(0, 1, 8, 1)), (cast, Whole()))


def test_the_refusal_names_both_ops() -> None:
    program = Program()
    w, x = program.argument(8, 3), program.argument(8, 3, role="batch")
    y = program.same("multiply", x, w)
    total = program.op("reduce", (y, w), (3,), Rule((8, 3), (((0,), (1,)), ()), (((1,),),), reduction=(0,)))
    spread = program.op("broadcast_in_dim", (total,), (8, 3), Rule((8, 3), (((1,),),), (((0,), (1,)),)))
    program.graph.outputs = (program.same("subtract", y, spread),)
    facts = BatchFacts(combiners={1: "stablehlo.maximum"})
    with pytest.raises(Refusal, match=r"not sync-free: 'stablehlo\.subtract'") as refused:
        split_microbatches(program.graph, facts, 2)
    assert refused.value.op == 3
    assert refused.value.notes[0] == (1, "'stablehlo.reduce' combines all examples here")


def test_merged_dimensions() -> None:
    # [batch 8, positions 5] -> [40] -> [8, 5], and a batch in the middle of three factors.
    merge = Rule((8, 5), (((0,), (1,)),), (((0, 1),),))
    split = Split(0, 1, 8, 1)
    span = find(merge, merge.operands[0], split, 8)
    assert span == Span(0, 1, 8, 1)
    assert place(merge, merge.results[0], span) == Split(0, 1, 8, 5)
    assert find(merge, merge.results[0], Split(0, 1, 8, 5), 40) == span
    # As one factor, the batch is inside of it.
    flat = Rule((40,), (((0,),),), (((0,),),))
    assert find(flat, flat.operands[0], Split(0, 1, 8, 5), 40) == Span(0, 1, 8, 5)
    assert place(flat, flat.results[0], Span(0, 1, 8, 5)) == Split(0, 1, 8, 5)


def test_groups_of_examples() -> None:
    # [8 * 5] -> [4, 10]: two examples to a group.
    rule = Rule((4, 10), (((0, 1),),), (((0,), (1,)),))
    with pytest.raises(Coarser) as coarser:
        find(rule, rule.operands[0], Split(0, 1, 8, 5), 40)
    assert coarser.value.times == 2
    # [8 * 5] -> [5, 8]: no groups of whole examples.
    rule = Rule((5, 8), (((0, 1),),), (((0,), (1,)),))
    assert find(rule, rule.operands[0], Split(0, 1, 8, 5), 40) is None
