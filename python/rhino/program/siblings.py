"""Element-wise results that one kernel writes, as they share what they compute: when, and what else is there then.

Owns that part of fusion; knows no mesh. `XLA: siblings-merged`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rhino.program.data import Graph, Op, once
from rhino.program.fusible import is_elementwise
from rhino.program.fusion import buffers, materialised

# Results that are further apart, in operations, follow from each other in all programs seen; to look is dear.
NEAR = 256


@dataclass(frozen=True, slots=True)
class Merged:
    """`results` are written together at op `at`; `read` are the buffers of the same size that are read for that."""

    at: int
    results: tuple[int, ...]
    read: tuple[int, ...]


@once
def merged(graph: Graph) -> Sequence[Merged]:
    """All kernels of a program that write several results, by the last of them.

    What is computed of a buffer is shared at least by the conversion of its elements to float32.
    """
    real, owner, users = materialised(graph), buffers(graph), graph.users()
    groups: dict[int, list[tuple[Op, tuple[int, ...]]]] = {}
    for op in graph.ops:
        if op.results and real[op.results[0]] and is_elementwise(graph, op):
            read = tuple(dict.fromkeys(_read(graph, op, real, owner)))
            for root in read:
                groups.setdefault(root, []).append((op, read))
    found: list[Merged] = []
    done: set[tuple[int, int]] = set()
    for group in groups.values():
        for (early, first_read), (late, last_read) in pairwise(group):
            pair = early.index, late.index
            if pair in done or early.parent != late.parent or late.index - early.index > NEAR:
                continue
            done.add(pair)
            if not reaches(graph, users, early, late):
                results = (early.results[0], late.results[0])
                found.append(Merged(late.index, results, tuple(dict.fromkeys((*first_read, *last_read)))))
    return found


def _read(graph: Graph, op: Op, real: Sequence[bool], owner: Sequence[int]) -> Iterator[int]:
    """Buffers of an op's shape, made by what cannot be fused with it, that the fusion which ends in it reads."""
    result = graph.values[op.results[0]]
    queue, seen = list(op.operands), set(op.operands)
    for v in queue:
        value = graph.values[v]
        if value.elements != result.elements or value.producer < 0 or value.loop != result.loop:
            continue
        if real[v]:
            yield owner[v]
            continue
        fresh = [u for u in graph.ops[value.producer].operands if u not in seen]
        seen.update(fresh)
        queue.extend(fresh)


def reaches(graph: Graph, users: Sequence[Sequence[int]], early: Op, late: Op) -> bool:
    """Whether an op's result is needed for another's."""
    queue = list(early.results)
    seen = set(queue)
    for v in queue:
        for o in users[v]:
            if o == late.index:
                return True
            fresh = [r for r in graph.ops[o].results if r not in seen] if o < late.index else []
            seen.update(fresh)
            queue.extend(fresh)
    return False
