"""Element-wise values that cost too much to be made again by each kernel that reads them: a tanh, an erfc.

Owns which these are, and what is made of them. `XLA: costly-made-once, tanh-kept, wide-tanh-kept`. Knows no mesh and
no costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rhino.program.data import Graph, Op, once
from rhino.program.fusible import is_elementwise, is_fusible
from rhino.program.fusion import materialised

_TANH = "stablehlo.tanh"
_COSTLY = (_TANH, "chlo.erfc")


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


def made_once(graph: Graph, tanh: bool, wide_tanh: bool, summed: bool) -> Iterator[tuple[int, list[int]]]:
    """Those that are written where they are made: each with what is made of it.

    Args:
      tanh: whether an erfc is, and a tanh of 16 bits, where no one kernel can make all that is made of it.
      wide_tanh: whether a tanh of float32 is, too.
      summed: whether any is of which something is made that is summed.
    """
    for v, made, is_summed, is_later in _groups(graph):
        value = graph.values[v]
        narrow = value.nbytes <= 2 * value.elements
        far = tanh and is_later and (narrow or wide_tanh or graph.ops[value.producer].name != _TANH)
        if far or (summed and is_summed):
            yield v, made


@once
def _groups(graph: Graph) -> list[tuple[int, list[int], bool, bool]]:
    """`costly`, each with whether no one kernel can make all that is made of it."""
    found = list(costly(graph, materialised(graph)))
    later = _later(graph, [made for _, made, _ in found])
    return [(*entry, is_later) for entry, is_later in zip(found, later, strict=True)]


def _later(graph: Graph, groups: Sequence[Sequence[int]]) -> list[bool]:
    """For each group of values, whether one of them follows from another by more than what is element-wise.

    One pass for all: each value has a bit for each group of which something that it follows from reads a value.
    """
    if not groups:
        return []
    member: dict[int, int] = {}
    for i, group in enumerate(groups):
        for v in group:
            member[v] = member.get(v, 0) | 1 << i
    follows = [0] * len(graph.values)
    found = 0
    for op in graph.ops:
        bits = 0
        for v in op.operands:
            bits |= follows[v]
        if not is_fusible(op):
            for v in op.operands:
                bits |= member.get(v, 0)
        for tie in op.ties:
            for v in tie[1:]:
                follows[v] |= follows[tie[0]]
        for v in op.results:
            follows[v] |= bits
            found |= bits & member.get(v, 0)
    return [bool(found >> i & 1) for i in range(len(groups))]


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
