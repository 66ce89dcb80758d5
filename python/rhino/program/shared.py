"""Element-wise values that are written because too many kernels would read what they are made of again.

Owns which these are: the sums along a residual stream, read by every layer. `XLA: shared-made-once`. Knows no mesh and
no costs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rhino.program.data import Graph, Op
from rhino.program.fusible import is_fusible, made_of

# Of two kernels that read a value each makes it again, whatever that takes; more readers than this are not counted.
_FEWEST, _MOST = 3, 8


def shared(graph: Graph, real: Sequence[bool], inside: Collection[int]) -> list[int]:
    """Fused values that are rather written, in program order.

    If n kernels read a value of b bytes that is made of a bytes in memory, to make it again moves n a, and to write it
    a + (1 + n) b.

    Args:
      real: `fusion.materialised` of the graph.
      inside: what kernels compute inside of themselves (`rows.rows_inside`).
    """
    users, memory = graph.users(), [there and v not in inside for v, there in enumerate(real)]
    found = []
    for op in graph.ops:
        v = op.results[0] if len(op.results) == 1 else -1
        if v < 0 or memory[v] or v in inside or len(users[v]) < 2 or not is_fusible(op):
            continue
        value = graph.values[v]
        if value.elements <= 1 or sum(graph.values[u].nbytes for u in op.operands) <= value.nbytes:
            continue
        n = _readers(graph, v, memory, users)
        if n < _FEWEST:
            continue
        made_of = _leaves(graph, op, memory)
        if (n - 1) * made_of > (n + 1) * value.nbytes:
            memory[v] = True
            found.append(v)
    return found


def _leaves(graph: Graph, op: Op, memory: Sequence[bool]) -> int:
    """Bytes in memory that an op's result is made of."""
    behind = made_of(graph, op.operands, lambda v, _: not memory[v])
    return sum(graph.values[v].nbytes for v in behind if memory[v] or graph.values[v].producer < 0)


def _readers(graph: Graph, v: int, memory: Sequence[bool], users: Sequence[Sequence[int]]) -> int:
    """Values in memory that a value is read for, as far as they are counted."""
    queue, seen, found = [v], {v}, 0
    for u in queue:
        for o in users[u]:
            for made in graph.ops[o].results:
                if made in seen:
                    continue
                seen.add(made)
                if memory[made]:
                    found += 1
                else:
                    queue.append(made)
            if found >= _MOST:
                return found
    return found
