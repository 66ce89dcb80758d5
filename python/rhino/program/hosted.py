"""Updates whose optimizer state can be in the memory of the host between steps, and where in a step they belong.

Owns what can be (docs/design/offload.md). Knows no IR; the rewrite is `rhino.ir.offload`'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import groupby

from rhino.program.data import Graph, Op
from rhino.program.disjoint import DisjointSets
from rhino.program.fusible import is_elementwise
from rhino.program.fusion import materialised, splats
from rhino.program.operations import CONSTRAINTS, NESTING, PLACEMENT
from rhino.program.operations import stablehlo as named

# A smaller tensor is not worth two copies, each of which waits for the other end.
LEAST_BYTES = 1 << 20
# What may have effects, or give something else each time, in its regions too.
_MAY_ACT = NESTING | named("custom_call rng infeed outfeed send recv")


@dataclass(frozen=True, slots=True)
class HostedUpdate:
    """An element-wise update whose state can be in the memory of the host between steps.

    Attributes:
      ops: what it computes, in program order.
      state: by argument of the optimizer its position, and that of the result that takes its buffer.
      waits: values that it reads and does not make.
      nbytes: of the state, undivided.
      rows: of how many layers it is a stack, whose state is brought layer by layer; 1 where it is brought at once.
    """

    ops: tuple[int, ...]
    state: tuple[tuple[int, int], ...]
    waits: tuple[int, ...]
    nbytes: int
    rows: int = 1

    def joined(self, other: HostedUpdate) -> HostedUpdate:
        """Both as one; the other one follows, and waits for nothing that this one makes."""
        waits = tuple(dict.fromkeys((*self.waits, *other.waits)))
        return HostedUpdate(
            (*self.ops, *other.ops), (*self.state, *other.state), waits, self.nbytes + other.nbytes, self.rows
        )


def hosted_updates(graph: Graph) -> list[HostedUpdate]:
    """The updates whose state only they read and make, the largest first.

    State that is in the host's memory already stays there. Time is linear in ops but for sorting them.
    """
    returned = Counter(graph.outputs)
    state = {
        a.value: k
        for k, a in enumerate(graph.arguments)
        if a.role == "opt_state" and a.alias >= 0 and a.value not in graph.hosted
        if graph.values[a.value].nbytes >= LEAST_BYTES and a.value not in graph.stages
        if returned[graph.outputs[a.alias]] == 1
    }
    if not state:
        return []
    made, sets = _made_of(graph, state)
    groups: dict[int, list[int]] = {}
    for o in sorted(made):
        groups.setdefault(sets.find(graph.ops[o].results[0]), []).append(o)
    found = [update for ops in groups.values() if (update := _update(graph, state, ops)) is not None]
    stuck = _circular(graph, found)
    kept = [update for k, update in enumerate(found) if k not in stuck]
    return sorted(kept, key=lambda update: (-update.nbytes, update.ops))


def waits_in_memory(graph: Graph, update: HostedUpdate) -> int:
    """The last value in memory that an update waits for; -1 for none. A barrier would have any other written there."""
    real, v = materialised(graph), _latest(graph, update.waits)
    while v >= 0 and not real[v]:
        v = _latest(graph, graph.ops[graph.values[v].producer].operands)
    return v


def _made_of(graph: Graph, state: Mapping[int, int]) -> tuple[set[int], DisjointSets]:
    """The element-wise operations that state enters, and what only they read; values of one update are joined."""
    sets, users, made = DisjointSets(len(graph.values)), graph.users(), set[int]()
    reached = set(state)
    for op in graph.ops:
        if _works(graph, op) and not reached.isdisjoint(op.operands):
            made.add(op.index)
            reached.update(op.results)
            for v in op.operands:
                if v in reached:
                    sets.join(op.results[0], v)
    for op in reversed(graph.ops):
        readers = users[op.results[0]] if op.results else ()
        if op.index not in made and readers and _works(graph, op) and made.issuperset(readers):
            owners = {sets.find(graph.ops[o].results[0]) for o in readers}
            if len(owners) == 1 and op.results[0] not in graph.outputs:
                made.add(op.index)
                sets.join(op.results[0], graph.ops[readers[0]].results[0])
    return made, sets


def _works(graph: Graph, op: Op) -> bool:
    """Whether an operation is element by element, of the step itself."""
    return (
        op.parent < 0
        and len(op.results) == 1
        and op.tag != PLACEMENT
        and is_elementwise(graph, op)
        and (graph.values[op.results[0]].shape != ())
    )


def _update(graph: Graph, state: Mapping[int, int], ops: Sequence[int]) -> HostedUpdate | None:
    """An update of these operations; None where not all of its state is read and made by them alone."""
    among, users = set(ops), graph.users()
    results = {graph.ops[o].results[0] for o in ops}
    reads = dict.fromkeys(v for o in ops for v in graph.ops[o].operands)
    pairs = []
    for v in reads:
        if v in state:
            alias = graph.arguments[state[v]].alias
            if graph.outputs[alias] in results and among.issuperset(users[v]):
                pairs.append((state[v], alias))
    if not pairs:
        return None
    nbytes = sum(graph.values[graph.arguments[k].value].nbytes for k, _ in pairs)
    waits = tuple(v for v in reads if v not in results)
    return HostedUpdate(tuple(ops), tuple(pairs), waits, nbytes, _rows(graph, ops, pairs))


def _rows(graph: Graph, ops: Sequence[int], state: Sequence[tuple[int, int]]) -> int:
    """Of how many layers an update is: loops over them read or make stacks of its shape. 1 where rows are small."""
    if any(graph.ops[o].name in CONSTRAINTS for o in ops):
        return 1  # it is of whole stacks
    shape = graph.values[graph.ops[ops[0]].results[0]].shape
    least = min(graph.values[graph.arguments[k].value].nbytes for k, _ in state)
    return shape[0] if shape in _stacks(graph) and least >= LEAST_BYTES * shape[0] else 1


def _stacks(graph: Graph) -> frozenset[tuple[int, ...]]:
    """The shapes of what loops carry with as many rows as they have trips."""
    return graph.fact(_stack_shapes)


def _stack_shapes(graph: Graph) -> frozenset[tuple[int, ...]]:
    loops = [op for op in graph.ops if op.name == "stablehlo.while" and op.index != graph.microbatch_loop]
    shapes = ((op.iterations, graph.values[v].shape) for op in loops for v in op.operands)
    return frozenset(shape for trips, shape in shapes if trips > 1 and shape[:1] == (trips,))


def _circular(graph: Graph, updates: Sequence[HostedUpdate]) -> set[int]:
    """The updates, by position, that cannot be done at once, as they read what is made of their own values."""
    stuck: set[int] = set()
    while True:
        rest = [update for k, update in enumerate(updates) if k not in stuck]
        done = {id(item) for item in in_order(graph, rest) if isinstance(item, HostedUpdate)}
        missing = {k for k, update in enumerate(updates) if k not in stuck and id(update) not in done}
        if not missing:
            return stuck
        stuck |= missing


def in_order(graph: Graph, updates: Sequence[HostedUpdate]) -> Iterator[HostedUpdate | int]:
    """The operations of @main in program order, but each update at once, in its place (`_ranks`).

    What cannot be reached, as an update waits for itself, is left out. Effects stay in their order.
    """
    tops = [op for op in graph.ops if op.parent < 0]
    unit = {o: -1 - k for k, update in enumerate(updates) for o in update.ops}
    needs: dict[int, set[int]] = {}
    effect = -1
    for op in tops:
        mine = unit.get(op.index, op.index)
        found = needs.setdefault(mine, set())
        for inner in graph.ops[op.index : max(op.index + 1, op.region_end)]:
            found.update(_unit_of(graph, unit, v) for v in inner.operands)
        if not op.results or op.name in _MAY_ACT:
            if effect >= 0:
                found.add(effect)
            effect = mine
        found.discard(mine)
    waiting: dict[int, list[int]] = {}
    left: dict[int, int] = {}
    for mine, found in needs.items():
        found = {n for n in found if n in needs}
        left[mine] = len(found)
        for n in found:
            waiting.setdefault(n, []).append(mine)
    rank = _ranks(graph, updates, needs)
    ready = [(rank[mine], mine) for mine, count in left.items() if not count]
    heapify(ready)
    while ready:
        _, mine = heappop(ready)
        yield mine if mine >= 0 else updates[-1 - mine]
        for other in waiting.get(mine, ()):
            left[other] -= 1
            if not left[other]:
                heappush(ready, (rank[other], other))


def _unit_of(graph: Graph, unit: Mapping[int, int], v: int) -> int:
    """Who makes a value: an update, or an operation of @main; a number that is neither for an argument."""
    o = graph.values[v].producer
    loop = graph.values[v].loop
    if o < 0:
        o = loop
    while o >= 0 and graph.ops[o].parent >= 0:
        o = graph.ops[o].parent
    return unit.get(o, o) if o >= 0 else len(graph.ops)


def _ranks(graph: Graph, updates: Sequence[HostedUpdate], needs: Mapping[int, set[int]]) -> dict[int, int]:
    """Who comes first of what could come next.

    An update comes as soon as its gradient is there, where as large ones follow; else at the end, the smallest first.
    What it needs comes before: counts and rates, which steps compute late, are soon made.
    """
    rank = {mine: mine for mine in needs}
    last = [_last(graph, update) for update in updates]
    # As many bytes as of the state of one kind.
    gradients = [update.nbytes // len(update.state) for update in updates]
    following, later = dict[int, int](), 0
    for o, same in groupby(sorted(zip(last, gradients, strict=True), reverse=True), key=lambda pair: pair[0]):
        following[o] = later
        later += sum(size for _, size in same)
    for k in sorted(range(len(updates)), key=lambda k: (last[k], k)):
        rank[-1 - k] = last[k] if following[last[k]] >= gradients[k] else len(graph.ops)
        pending = [-1 - k]
        while pending:
            for n in needs[pending.pop()]:
                if n >= 0 and n in rank and rank[n] > rank[-1 - k]:
                    rank[n] = rank[-1 - k]
                    pending.append(n)
    return rank


def _last(graph: Graph, update: HostedUpdate) -> int:
    """The operation that makes the last value that an update waits for: a gradient; -1 if it waits for none."""
    v = _latest(graph, update.waits)
    return graph.values[v].producer if v >= 0 else -1


def _latest(graph: Graph, values: Iterable[int]) -> int:
    """Of values that are made, and are no numbers, the one that is made last; -1 for none."""
    made = [v for v in values if graph.values[v].producer >= 0 and not _is_number(graph, v)]
    return max(made, key=lambda v: (graph.values[v].producer, -v), default=-1)


def _is_number(graph: Graph, v: int) -> bool:
    """Whether a value is a number, or one throughout."""
    producer = graph.values[v].producer
    op = graph.ops[producer] if producer >= 0 else None
    spread = op is not None and op.name == "stablehlo.broadcast_in_dim" and not graph.values[op.operands[0]].shape
    return not graph.values[v].shape or spread or v in splats(graph)
