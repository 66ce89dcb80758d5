"""A step as one micro-batch, whatever it computes: a loop that runs once, where examples may need each other.

Owns which operations are in the loop then, and which come after it. For `count` 1 only, when `analysis` refuses.
"""

from __future__ import annotations

from collections.abc import Sequence

from rhino.microbatch.facts import BatchFacts, Reads
from rhino.microbatch.forms import WHOLE, Form, Partial, Refusal
from rhino.microbatch.localise import DEAR
from rhino.microbatch.plan import CopiedRegion, MicrobatchPlan, OpCopy
from rhino.program.data import Graph


def whole_batch(graph: Graph, facts: BatchFacts, batch: Sequence[int], refusal: Refusal) -> MicrobatchPlan:
    """The plan for one micro-batch that is the batch: what depends on it runs in the loop, but for the cheap end of it.

    Args:
      batch: the values that hold the batch.
      refusal: why there is no plan for more of them; raised where this form does not suit the program either.

    Raises:
      Refusal: `refusal`.
    """
    reads = Reads(graph, facts)
    top = tuple(op.index for op in graph.ops if op.parent < 0)
    live = reads.live(top, graph.outputs)
    depends = set(batch)
    for k in live:
        if not depends.isdisjoint(reads.of(k)):
            depends.update(graph.ops[k].results)
    after = _after(graph, facts, reads, live, depends)
    loop = [k for k in live if k not in after and not depends.isdisjoint(reads.of(k))]
    made = {v for k in loop for v in graph.ops[k].results}
    if any(not made.isdisjoint(facts.captures.get(op.index, ())) for op in graph.ops):
        raise refusal
    crossing = {v for k in after for v in reads.of(k) if v in made} | {v for v in graph.outputs if v in made}
    forms: dict[int, Form] = {v: Partial("or" if graph.values[v].dtype == "i1" else "add") for v in crossing}
    return MicrobatchPlan(
        count=1,
        group=1,
        loop=[_copy(graph, facts, forms, k) for k in loop],
        after=sorted(after),
        sums=[(v, form) for v, form in sorted(forms.items(), key=lambda item: item[0]) if isinstance(form, Partial)],
        stacks=[],
        before=[k for k in live if depends.isdisjoint(graph.ops[k].results) and k not in after and k not in loop],
    )


def _after(graph: Graph, facts: BatchFacts, reads: Reads, live: Sequence[int], depends: set[int]) -> set[int]:
    """Cheap ops at the end, mostly the optimizer's: they depend on the batch, and nothing dear reads their results."""
    wanted: set[int] = set()  # what ops in the loop read
    found: set[int] = set()
    for k in reversed(live):
        op = graph.ops[k]
        if depends.isdisjoint(reads.of(k)):
            continue
        dear = op.name in DEAR or op.kernel is not None or k in facts.regions or k in facts.effects
        if dear or not wanted.isdisjoint(op.results):
            wanted.update(reads.of(k))
        else:
            found.add(k)
    return found


def _copy(graph: Graph, facts: BatchFacts, forms: dict[int, Form], k: int) -> OpCopy:
    op = graph.ops[k]
    bodies = tuple(
        CopiedRegion(
            tuple((v, WHOLE) for v in region.args),
            [_copy(graph, facts, forms, inner) for inner in region.ops],
            tuple((v, forms.get(v, WHOLE)) for v in region.yields),
        )
        for region in facts.regions.get(k, ())
    )
    operands = tuple((v, forms.get(v, WHOLE)) for v in op.operands)
    return OpCopy(k, operands, tuple((v, forms.get(v, WHOLE)) for v in op.results), bodies)
