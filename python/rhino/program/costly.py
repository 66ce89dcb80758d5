"""Element-wise values that cost too much to be made again by each kernel that reads them: a tanh.

Owns which these are, and what is made of them. `XLA: costly-made-once`. Knows no mesh and no costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rhino.program.data import Graph, Op
from rhino.program.fusible import is_elementwise

_COSTLY = ("stablehlo.tanh",)


def costly(graph: Graph, real: Sequence[bool]) -> Iterator[tuple[int, list[int], bool]]:
    """Values of which several in memory are made: each with these, and whether one of what is made is summed.

    Without such a sum XLA computes the value again for each.

    Args:
      real: `fusion.materialised` of the graph.
    """
    if not any(op.name in _COSTLY for op in graph.ops):
        return
    users = graph.users()
    for op in graph.ops:
        if op.name in _COSTLY and not real[op.results[0]]:
            made, summed = _descendants(graph, op, real, users)
            if len(made) > 1:
                yield op.results[0], made, summed


def _descendants(graph: Graph, op: Op, real: Sequence[bool], users: Sequence[Sequence[int]]) -> tuple[list[int], bool]:
    """Values in memory that are computed from an op's result by element-wise ops of its region alone.

    Also says whether one of these ops' results is summed.
    """
    shape = graph.values[op.results[0]].shape
    found: dict[int, None] = {}
    summed = False
    queue = [op.results[0]]
    seen = set(queue)
    for v in queue:
        for o in users[v]:
            reader = graph.ops[o]
            summed = summed or reader.name == "stablehlo.reduce"
            if reader.parent != op.parent or not is_elementwise(graph, reader):
                continue
            result = reader.results[0]
            if result in seen or graph.values[result].shape != shape:
                continue
            seen.add(result)
            if real[result]:
                found[result] = None
            queue.append(result)
    return list(found), summed
