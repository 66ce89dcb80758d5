"""What dots compute of their operand themselves, on back ends that write such kernels.

Owns which values are not written on that account: `XLA: maxima-fused-into-dots`. Knows no mesh and no costs.
"""

from __future__ import annotations

from rhino.program.data import Graph, Op, once
from rhino.program.fusible import is_elementwise
from rhino.program.fusion import buffers, materialised, splats
from rhino.program.memory import lifetimes


@once
def prologues(graph: Graph) -> frozenset[int]:
    """Maxima with a constant, of 16 bits, that dots alone read, made of what is kept as long anyway.

    The gradient of a rectified layer asks for what the maximum was taken of, so that one of both is enough.
    """
    users, reads, owner = graph.users(), lifetimes(graph).reads, buffers(graph)
    last = [-1] * len(reads)
    for v, until in enumerate(reads):
        last[owner[v]] = max(last[owner[v]], until)
    found = set()
    for op in graph.ops:
        if op.name != "stablehlo.maximum" or graph.values[op.results[0]].dtype not in ("bf16", "f16"):
            continue
        made = op.results[0]
        if not users[made] or any(graph.ops[o].name != "stablehlo.dot_general" for o in users[made]):
            continue
        sources = _sources(graph, op)
        if len(sources) == 1 and made not in graph.outputs and last[owner[sources[0]]] >= reads[made]:
            found.add(made)
    return frozenset(found)


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
