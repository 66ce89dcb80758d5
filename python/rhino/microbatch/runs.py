"""Whole batches one after the other along a dimension: joined, taken and padded as such.

Owns concatenations, slices and pads along the batch. Two views of the batch that were concatenated hold each example
twice; a slice that begins and ends between views takes some of them, and is what a pad, its transpose, undoes.
"""

from __future__ import annotations

from collections.abc import Sequence

from rhino.microbatch.facts import BatchFacts
from rhino.microbatch.forms import WHOLE, Form, Split, Whole
from rhino.program.data import Graph, Op


def of_runs(graph: Graph, facts: BatchFacts, op: Op, forms: Sequence[Form]) -> tuple[list[Form], Split] | None:
    """The forms of an op's operands and of its result, if it joins, takes or pads whole batches; else None."""
    dim = facts.joins.get(op.index)
    if dim is not None:
        return _joined(graph, op, forms, dim)
    edges, form = facts.edges.get(op.index), forms[0]
    if edges is None or not isinstance(form, Split) or not all(isinstance(f, Whole) for f in forms[1:]):
        return None
    change, run = edges[form.dim], form.count * form.after
    if change is None or change == (0, 0) or any(n % run for n in change):
        return None
    before = form.before + sum(change) // run
    return ([form, *forms[1:]], Split(form.dim, before, form.count, form.after)) if before > 0 else None


def _joined(graph: Graph, op: Op, forms: Sequence[Form], dim: int) -> tuple[list[Form], Split] | None:
    first = next(f for f in forms if isinstance(f, Split))
    run = first.count * first.after
    found: list[Form] = []
    for v, form in zip(op.operands, forms, strict=True):
        size = graph.values[v].shape[dim]
        alike = Split(dim, size // run, first.count, first.after)
        if size % run or form not in (alike, WHOLE):
            return None
        found.append(alike)
    return found, Split(dim, sum(f.before for f in found if isinstance(f, Split)), first.count, first.after)
