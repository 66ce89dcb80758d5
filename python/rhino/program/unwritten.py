"""What dots read that some back ends do not write for them: they read what it is made of, or a copy of their own.

Owns which values these are: `XLA: maxima-fused-into-dots, roundings-undone, dots-widened`. Knows no mesh and no costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rhino.program.data import Graph, Op, once
from rhino.program.fusible import is_elementwise
from rhino.program.fusion import buffers, materialised, splats
from rhino.program.memory import lifetimes
from rhino.program.operations import CONTRACTIONS
from rhino.program.rows import memory_of


@once
def maxima(graph: Graph) -> frozenset[int]:
    """Maxima with a constant, of 16 bits, that dots alone read, made of what is kept as long anyway.

    The gradient of a rectified layer asks for what the maximum was taken of, so that one of both is enough.
    """
    reads, owner, constants = lifetimes(graph).reads, buffers(graph), splats(graph)
    last = [-1] * len(reads)
    for v, until in enumerate(reads):
        last[owner[v]] = max(last[owner[v]], until)
    found = set()
    for op in graph.ops:
        if op.name != "stablehlo.maximum" or graph.values[op.results[0]].dtype not in ("bf16", "f16"):
            continue
        (made,) = op.results
        if constants.isdisjoint(op.operands) or not _only_dots_read(graph, made):
            continue
        sources = _sources(graph, op)
        if len(sources) == 1 and last[owner[sources[0]]] >= reads[made]:
            found.add(made)
    return frozenset(found)


@once
def unrounded(graph: Graph) -> frozenset[int]:
    """Float32 arguments that are rounded for dots of bfloat16 alone, which back ends with `dots_widened` do not do."""
    given, found = {argument.value for argument in graph.arguments}, set()
    for op in graph.ops:
        if op.name == "stablehlo.convert" and op.operands[0] in given:
            (made,) = op.results
            types = graph.values[op.operands[0]].dtype, graph.values[made].dtype
            if types == ("f32", "bf16") and _only_dots_read(graph, made):
                found.add(made)
    return frozenset(found)


@once
def narrow(graph: Graph) -> Mapping[int, Sequence[int]]:
    """By product which operands are arguments, of the step or of a loop, in bfloat16.

    Nothing writes them as float32. Back ends with `dots_widened` copy each, once for all products of a region.
    """
    real, copied = materialised(graph), set()
    found: dict[int, list[int]] = {}
    for op in graph.ops:
        for i, operand in enumerate(op.operands if op.name in CONTRACTIONS else ()):
            v = memory_of(graph, real, operand)
            if graph.producer(v) is None and graph.values[v].dtype == "bf16" and (op.parent, v) not in copied:
                copied.add((op.parent, v))
                found.setdefault(op.index, []).append(i)
    return found


def _only_dots_read(graph: Graph, v: int) -> bool:
    users = [graph.ops[o].name for o in graph.users()[v]]
    return bool(users) and set(users) == {"stablehlo.dot_general"} and v not in graph.outputs


def _sources(graph: Graph, op: Op) -> list[int]:
    """What is in memory, and as large, of what an element-wise op is computed of."""
    real, constants, size = materialised(graph), splats(graph), graph.values[op.results[0]].nbytes
    queue = [v for v in op.operands if v not in constants]
    found: dict[int, None] = {}
    for v in queue:
        producer = graph.producer(v)
        if real[v] or producer is None:
            found[v] = None
        elif is_elementwise(graph, producer):
            queue.extend(u for u in producer.operands if u not in constants)
        elif producer.name != "stablehlo.broadcast_in_dim":
            found[v] = None
    return [v for v in found if graph.values[v].nbytes >= size]
