"""Peak bytes of one device: what is alive when, under given layouts.

Owns the liveness sweep of docs/design/cost-model.md, "Memory", on the ops in program order. Knows no mesh: it is told
how many bytes each value takes on a device, and which converted copies exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rhino.program.data import Graph, Op, once
from rhino.program.fusible import is_elementwise, is_fusible
from rhino.program.fusion import absorbed, buffers, materialised, splats
from rhino.program.operations import PLACEMENT
from rhino.program.orders import copied_stacks


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one device. `at` is the op at the peak; `live` the (value, bytes) alive there, arguments left out.

    `host_bytes` of arguments are on the host, and no part of the peak.
    """

    peak_bytes: int
    argument_bytes: int
    output_bytes: int
    temp_bytes: int
    alias_bytes: int
    at: int
    live: tuple[tuple[int, int], ...]
    host_bytes: int = 0


class LiveBytes:
    """Bytes that come and go: between which moments they are there, and when there are most."""

    def __init__(self) -> None:
        self._changes: dict[int, int] = {}

    def add(self, nbytes: int, first: int, last: int) -> None:
        """So many bytes are there from the first moment to the last one."""
        self._changes[first] = self._changes.get(first, 0) + nbytes
        self._changes[last + 1] = self._changes.get(last + 1, 0) - nbytes

    def highest(self, counts: Callable[[int], bool] = lambda moment: True) -> tuple[int, int]:
        """The most bytes at once, and the first moment of that, of the moments that count."""
        best = now = when = 0
        for moment in sorted(self._changes):
            now += self._changes[moment]
            if now > best and counts(moment):
                best, when = now, moment
        return best, when


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """When each buffer is born and last read, as op indices; buffers of arguments are not in it.

    `reads[v]` is the last op that needs value v in memory, after following the fusions that recompute through it;
    `first_reads[v]` the first. `fresh_outputs` are buffers of results that are not an argument's, `copied_outputs`
    are arguments handed through (`XLA: handed-through-copied`). `readers[v]` are the ops that read a value which no
    other shares a buffer with and no loop comes between, with when they do; who makes it is the first of them.
    Where a device holds only a stage of the program,
    `weights` says how often a value is held at once, and `others` that for all that is not listed there.
    """

    intervals: tuple[tuple[int, int, int], ...]
    reads: tuple[int, ...]
    first_reads: tuple[int, ...]
    fresh_outputs: tuple[int, ...]
    copied_outputs: tuple[int, ...]
    readers: Mapping[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    weights: Mapping[int, int] = field(default_factory=dict)
    others: int = 1


@once
def lifetimes(graph: Graph) -> Lifetimes:
    """One backward sweep: a value not written to memory keeps what it is computed from alive for its readers."""
    real, owner, late, stacks = materialised(graph), buffers(graph), absorbed(graph), copied_stacks(graph)
    count = len(graph.ops)
    reads = [-1] * len(graph.values)
    first_reads = [count] * len(graph.values)
    for v in graph.outputs:
        reads[v] = count
    for op in reversed(graph.ops):
        fused = (is_fusible(op) or op.index in late) and bool(op.results) and not real[op.results[0]]
        when = max(op.index, reads[op.results[0]]) if fused else op.index
        soonest = first_reads[op.results[0]] if fused else op.index
        for v in op.operands:
            reads[v] = max(reads[v], _loop_end(graph, op.index, graph.values[v].loop, when))
            first_reads[v] = min(first_reads[v], soonest)
        for position, tie in enumerate(op.ties):
            # A loop reads its carried buffers until its end.
            if op.name == "stablehlo.while":
                for v in tie[(op.index, position) in stacks :]:
                    reads[v] = max(reads[v], op.region_end - 1)
    arguments = {owner[a.value] for a in graph.arguments}
    aliased = {owner[graph.outputs[a.alias]] for a in graph.arguments if a.alias >= 0}
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for value in graph.values:
        v = value.index
        root = owner[v]
        if not real[v] or root in arguments or root in aliased or v in graph.hosted:
            continue
        # A block argument is born with its loop, whose result shares the buffer.
        first[root] = min(first.get(root, count), value.producer if value.producer >= 0 else count)
        last[root] = max(last.get(root, -1), reads[v], value.producer)
    for made in _filled_together(graph, real):
        soonest = min(first.get(owner[v], count) for v in made)
        for root in {owner[v] for v in made} & first.keys():
            first[root] = min(first[root], soonest)
    for v, end in _brought(graph):
        if owner[v] in last and real[v]:
            last[owner[v]] = max(last[owner[v]], end)
    # Nothing is written over what a scatter then works on. XLA: scatters-absorbed
    kept = set(late.values())
    for op in graph.ops:
        for root in overwritten(graph, op, real, owner):
            if not kept.isdisjoint(op.results):
                break
            if last.get(root) == op.index and first[root] < op.index:
                last[root] -= 1
                break
    outputs = [v for v in graph.outputs if v not in graph.hosted]
    fresh = tuple(dict.fromkeys(owner[v] for v in outputs if owner[v] not in arguments and owner[v] not in aliased))
    copied = tuple(v for v in outputs if owner[v] in arguments and owner[v] not in aliased)
    intervals = tuple((r, first[r], last[r]) for r in first if first[r] < count)
    readers = {v: found for v, found in _readers(graph, real, owner, reads) if v in first}
    return Lifetimes(intervals, tuple(reads), tuple(first_reads), fresh, copied, readers)


def _brought(graph: Graph) -> Iterator[tuple[int, int]]:
    """What an update with state of the host's reads, and when its results go there: one kernel reads and makes all."""
    reads: dict[int, dict[int, None]] = {}  # by the block that it is in
    for op in graph.ops if graph.hosted else ():
        mine = reads.setdefault(op.parent, {})
        if op.tag == PLACEMENT and op.results[0] in graph.hosted:
            yield from ((v, op.index) for v in mine)
        elif op.tag != PLACEMENT and not graph.hosted.isdisjoint(op.results):
            # The next update waits here.
            mine.clear()
        else:
            mine.update(dict.fromkeys((*op.operands, *op.results) if op.tag == PLACEMENT else op.operands))


def _filled_together(graph: Graph, real: Sequence[bool]) -> Iterable[list[int]]:
    """Values that one kernel fills, before the first of them is needed. `XLA: fills-merged`."""
    found: dict[tuple[int, tuple[int, ...], str], list[int]] = {}
    constants = splats(graph)
    for op in graph.ops:
        if op.name == "stablehlo.broadcast_in_dim" and real[op.results[0]] and op.results[0] in constants:
            value = graph.values[op.results[0]]
            found.setdefault((op.parent, value.shape, value.dtype), []).append(value.index)
    return found.values()


def _readers(
    graph: Graph, real: Sequence[bool], owner: Sequence[int], reads: Sequence[int]
) -> Iterator[tuple[int, tuple[tuple[int, int], ...]]]:
    """`Lifetimes.readers`."""
    users = graph.users()
    alone = [0] * len(owner)
    for root in owner:
        alone[root] += 1
    returned = set(graph.outputs)
    for op in graph.ops:
        for v in op.results:
            if not real[v] or alone[v] != 1 or v in returned or len(users[v]) < 2:
                continue
            ops = [graph.ops[o] for o in users[v]]
            if all(o.parent == op.parent and not o.ties for o in ops):
                yield v, ((op.index, op.index), *((o.index, _when(o, real, reads)) for o in ops))


def _when(op: Op, real: Sequence[bool], reads: Sequence[int]) -> int:
    """The last op that needs what an op reads: the op, or who reads what is fused with it."""
    return max([op.index, *(reads[v] for v in op.results if not real[v])])


def overwritten(graph: Graph, op: Op, real: Sequence[bool], owner: Sequence[int]) -> Iterator[int]:
    """Buffers that an element-wise fusion writes over as their last reader, not those that came from the host.

    `XLA: fusions-overwrite, brought-not-overwritten`.
    """
    if not is_elementwise(graph, op) or not real[op.results[0]]:
        return
    result = graph.values[op.results[0]]
    queue, seen = list(op.operands), set(op.operands)
    for v in queue:
        value = graph.values[v]
        if value.shape != result.shape or value.loop != result.loop:
            continue
        if real[v]:
            brought = value.producer >= 0 and graph.ops[value.producer].tag == PLACEMENT
            if value.dtype == result.dtype and not brought:
                yield owner[v]
        elif value.producer >= 0 and is_elementwise(graph, graph.ops[value.producer]):
            fresh = [u for u in graph.ops[value.producer].operands if u not in seen]
            seen.update(fresh)
            queue.extend(fresh)


def _loop_end(graph: Graph, index: int, loop: int, when: int) -> int:
    """A read inside a loop of a value from outside it lasts until the loop ends."""
    parent = graph.ops[index].parent
    while parent >= 0 and parent != loop:
        if graph.ops[parent].name == "stablehlo.while":
            when = max(when, graph.ops[parent].region_end - 1)
        parent = graph.ops[parent].parent
    return when


def shortened(life: Lifetimes, instead: Mapping[int, tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Intervals of values, without those that a plan leaves nothing of."""
    found = [(v, *instead.get(v, (first, last))) for v, first, last in life.intervals]
    return [(v, first, last) for v, first, last in found if first <= last]


def peak(
    graph: Graph,
    life: Lifetimes,
    local_bytes: Sequence[int],
    copies: Sequence[tuple[int, int, int, int]],
    instead: Mapping[int, tuple[int, int]] | None = None,
) -> Memory:
    """Peak over the program.

    Args:
      local_bytes: bytes of each value on one device; 0 of those of its host.
      copies: (value, bytes, first, last) of converted copies, alive between two op indices.
      instead: (first, last) of values that a plan keeps for a shorter time than their lifetime says.
    """
    others = life.others
    alive = shortened(life, instead or {})
    spans = [(v, local_bytes[v] * life.weights.get(v, others), a, b) for v, a, b in alive]
    spans.extend((v, nbytes * others, a, b) for v, nbytes, a, b in copies)
    total = LiveBytes()
    for _, nbytes, a, b in spans:
        total.add(nbytes, a, b)
    best, at = total.highest()
    argument_bytes = sum(local_bytes[a.value] for a in graph.arguments)
    alias_bytes = sum(local_bytes[a.value] for a in graph.arguments if a.alias >= 0)
    output_bytes = sum(local_bytes[v] for v in graph.outputs)
    handed_on = sum(local_bytes[v] for v in life.copied_outputs)
    live = sorted(((n, -v) for v, n, a, b in spans if a <= at <= b), reverse=True)
    return Memory(
        peak_bytes=argument_bytes + best + handed_on,
        argument_bytes=argument_bytes,
        output_bytes=output_bytes,
        temp_bytes=max(0, best - sum(local_bytes[v] for v in life.fresh_outputs)),
        alias_bytes=alias_bytes,
        at=at,
        live=tuple((-v, n) for n, v in live),
    )
