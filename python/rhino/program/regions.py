"""Operations with their regions as items: those of a scope, and what each reads from outside.

Owns these two readings of a program. Knows nothing of what items are for.
"""

from __future__ import annotations

from rhino.program.data import Graph, Op


def body_items(graph: Graph, scope: int) -> list[int]:
    """The items of a scope: the program's own, or a loop's without those of its condition."""
    if scope < 0:
        return [op.index for op in graph.ops if op.parent < 0]
    loop = graph.ops[scope]
    inner = [i for i in range(scope + 1, loop.region_end) if graph.ops[i].parent == scope]
    tested = {tie[1] for tie in loop.ties}
    last = scope
    for i in inner:
        if not tested.isdisjoint(graph.ops[i].operands):
            tested.update(graph.ops[i].results)
            last = i
    return [i for i in inner if i > last]


def item_reads(graph: Graph, op: Op) -> tuple[int, ...]:
    """The values from outside that an operation and its regions read."""
    found = list(op.operands)
    if op.region_end > op.index + 1:
        inside = graph.ops[op.index + 1 : op.region_end]
        # Values are numbered in program order: what is younger than the first made here is its regions' own.
        first = min((v for made in (op, *inside) for v in made.results), default=len(graph.values))
        for inner in inside:
            found += [v for v in inner.operands if v < first]
            found += [v for tie in inner.ties for v in tie if v < first]
        found += [v for tie in op.ties for v in tie if v < first]
    return tuple(dict.fromkeys(found))
