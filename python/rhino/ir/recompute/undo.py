"""A step without recomputation: what `jax.checkpoint` has the backward pass do again is kept from the forward pass.

Owns finding what is done twice, in one block behind barriers and in a loop that goes back over another one, and the
rewrite. Which values a loop stacks for that is a minimum cut (`rhino.recompute.keep_least`).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.ir.recompute.names import Names
from rhino.ir.recompute.rewrite import is_done_once
from rhino.ir.recompute.scans import ScanPair, carry, let_go, one_row, row_type, shared, stack_also, written
from rhino.ir.scans.loops import LOOP, WRITE, Scan, Stack, Uses, read_scan
from rhino.program.data import Graph
from rhino.program.operations import NESTING, SOURCES
from rhino.program.regions import body_items, item_reads
from rhino.recompute import is_fused, keep_least

BARRIER = "stablehlo.optimization_barrier"


# --- in one block -----------------------------------------------------------------------------------------------------


def merge_again(block: Any) -> int:
    """Takes out of a block, and of the loops in it, what it does again behind barriers; how many operations."""
    known = _Around(Names(), {})
    names = known.names
    held_by: dict[Any, Any] = {}
    twins: list[tuple[Any, Any]] = []
    views: list[Any] = []
    opened: dict[Any, None] = {}
    gone = 0
    for op in [view.operation for view in block.operations][:-1]:
        for region in op.regions if op.name in NESTING else ():
            for inner in region:
                gone += merge_again(inner)
        if op.name == BARRIER:
            names.name(op.results, [names.of(v) for v in op.operands])
            held_by.update(dict.fromkeys(op.results, op))
        elif names.view(op):
            views.append(op)
            if op.operands[0] in held_by:
                held_by[op.results[0]] = held_by[op.operands[0]]
        elif not is_done_once(op):
            twin = known.twin(op)
            if twin is not None and op.name not in SOURCES:
                twins.append((op, twin))
                opened.update((held_by[v], None) for v in op.operands if v in held_by)
    if not opened:
        return gone
    for barrier in opened:
        for result, operand in zip(barrier.results, barrier.operands, strict=True):
            result.replace_all_uses_with(operand)
        barrier.erase()
    for op, twin in reversed(twins):
        for result, kept in zip(op.results, twin.results, strict=True):
            result.replace_all_uses_with(kept)
        op.erase()
    # What nothing reads any more would count as a reader of what it sees.
    for op in reversed(views):
        if all(next(iter(result.uses), None) is None for result in op.results):
            op.erase()
    return gone + len(twins)


# --- in two loops -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kept:
    """Two loops of which the second does again, layer by layer, what the first did, and what is stacked instead.

    Attributes:
      pair: the loops, with the values of the first's body that are stacked besides.
      instead: by value of the second's body the one of the first's that it is equal to, of those that are stacked.
      opened: barriers of the second's body that are not needed any more.
      dropped: stacks that the second does not read any more.
    """

    pair: ScanPair
    instead: dict[int, int]
    opened: tuple[int, ...]
    dropped: tuple[tuple[Stack, Stack], ...]


def find_kept(graph: Graph, ops: Sequence[Any], values: Sequence[Any]) -> Kept | None:
    """The first pair of loops in program order of which the second need not do again what it does."""
    uses = Uses.of(graph)
    scans = [s for op in graph.ops if op.name == LOOP and isinstance(s := read_scan(graph, ops, uses, op), Scan)]
    around: dict[int, _Around] = {}
    for k, first in enumerate(scans):
        for second in scans[k + 1 :]:
            scope = graph.ops[first.op].parent
            if scope != graph.ops[second.op].parent or not first.trips == second.trips > 1:
                continue
            if scope not in around:
                around[scope] = _Around.of([ops[i] for i in body_items(graph, scope)])
            found = _Pair(graph, ops, values, uses, first, second, around[scope]).kept()
            if found is not None:
                return found
    return None


@dataclass(frozen=True, slots=True)
class _Around:
    """The names of what is made in a block, and by what they compute its operations."""

    names: Names
    made: dict[Hashable, Any]

    @classmethod
    def of(cls, items: Sequence[Any]) -> _Around:
        """Loops and branches are left out: what they make is its own name."""
        found = cls(Names(), {})
        for op in _computing(items, found.names):
            if op.name not in NESTING:
                found.twin(op)
        return found

    def twin(self, op: Any) -> Any | None:
        """Name what an operation makes; the one before it that has computed the same."""
        twin = self.made.setdefault(self.names.computed(op), op)
        if twin is op:
            return None
        self.names.name(op.results, [self.names.of(v) for v in twin.results])
        return twin


def _computing(items: Iterable[Any], names: Names) -> Iterator[Any]:
    """The operations that compute something; those that only see it otherwise are named."""
    for op in items:
        if op.name == BARRIER:
            names.name(op.results, [names.of(v) for v in op.operands])
        elif not (names.view(op) or is_done_once(op)):
            yield op


class _Pair:
    """Two loops, and what is computed in both."""

    def __init__(
        self,
        graph: Graph,
        ops: Sequence[Any],
        values: Sequence[Any],
        uses: Uses,
        first: Scan,
        second: Scan,
        around: _Around,
    ) -> None:
        self.graph, self.ops, self.values, self.uses = graph, ops, values, uses
        self.first, self.second = first, second
        self.known = _Around(Names(around.names), dict(around.made))
        self.names = self.known.names
        self.items = {scan.op: body_items(graph, scan.op) for scan in (first, second)}
        self.reads = {i: item_reads(graph, graph.ops[i]) for items in self.items.values() for i in items}

    def kept(self) -> Kept | None:
        """What is stacked so that the second loop does less again; None if there is nothing."""
        graph, first, second = self.graph, self.first, self.second
        loop = graph.ops[first.op]
        read = {stack.value: stack for stack in second.stacks if not stack.written}
        both = [(a, read[a.result]) for a in first.stacks if a.written and a.result in read and len(a.accesses) == 1]
        stacks = tuple((a, b) for a, b in both if a.dim == b.dim)
        changing = {tie[2] for p, tie in enumerate(loop.ties) if p not in first.fixed}
        if not stacks:
            return None
        self._name_first()
        again = self._name_second(stacks)
        counted = {loop.ties[p][2] for p in (first.counter, *first.counters)}
        named = {self._name(v): v for v in reversed(self._layered(changing - counted))}
        again = [i for i in again if self._name(graph.ops[i].results[0]) in named]
        there = {self.names.source(self.values[written(graph, a)]) for a, _ in stacks}
        maker = {v: i for i in self.items[first.op] for v in graph.ops[i].results}

        def free(v: int) -> bool:
            return self._name(v) not in named or self.names.source(self.values[v]) in there

        kept, _ = keep_least(
            graph, [named[n] for n in self._needed(again, named)], maker, self.reads, free,
            lambda i: 1 + graph.ops[i].flops if is_fused(graph.ops[i]) else None,
        )  # fmt: skip
        if not kept or not kept.isdisjoint(
            tie[2] for p, tie in enumerate(loop.ties) for a, _ in stacks if a.position == p
        ):
            return None
        inside = [v for i in self.items[second.op] for v in graph.ops[i].results]
        instead = {v: named[self._name(v)] for v in inside if named.get(self._name(v)) in kept}
        wanted = self._wanted(again, named, instead)
        dropped = [
            (a, b) for a, b in shared(graph, self.uses, first, second)
            if wanted.isdisjoint(graph.ops[access].results[0] for access in b.accesses)
        ]  # fmt: skip
        opened = dict.fromkeys(
            graph.values[v].producer for i in again for v in self.reads[i]
            if graph.values[v].producer >= 0 and graph.ops[graph.values[v].producer].name == BARRIER
        )  # fmt: skip
        pair = ScanPair(first, second, stacks, frozenset(kept), ())
        return Kept(pair, instead, tuple(opened), tuple(dropped))

    # --- names --------------------------------------------------------------------------------------------------------

    def _name(self, v: int) -> Hashable:
        return self.names.of(self.values[v])

    def _name_first(self) -> None:
        """Names what the first loop's body makes."""
        self._name_given(self.first)
        for op in _computing(self._items(self.first), self.names):
            self.known.twin(op)

    def _name_second(self, stacks: Sequence[tuple[Stack, Stack]]) -> list[int]:
        """Names what the second's makes; the operations that the first has done, too, on the same."""
        self._name_given(self.second)
        for a, b in stacks:
            value = self.values[written(self.graph, a)]
            for access in b.accesses:
                if self.ops[access].results[0].type == value.type:
                    self.names.name(self.ops[access].results, [self.names.of(value)])
        index = {self.ops[i]: i for i in self.items[self.second.op]}
        return [index[op] for op in _computing(self._items(self.second), self.names) if self.known.twin(op)]

    def _name_given(self, scan: Scan) -> None:
        """What is the same in all trips is named by what it is in front of the loop, and a layer of it by that."""
        graph, ties = self.graph, self.graph.ops[scan.op].ties
        for p in scan.fixed:
            self.names.name([self.values[ties[p][2]]], [self._outer(ties[p][0])])
        for stack in scan.stacks:
            for access in () if stack.written else stack.accesses:
                result = graph.values[graph.ops[access].results[0]]
                whole = list(graph.values[stack.value].shape)
                if [*whole[: stack.dim], 1, *whole[stack.dim + 1 :]] == list(result.shape):
                    self.names.name(self.ops[access].results, [("layer", self._outer(stack.value), stack.dim)])

    def _outer(self, v: int) -> Hashable:
        """A value from in front of a loop; what the first one hands on unchanged is what it was given."""
        loop = self.graph.ops[self.first.op]
        for p in self.first.fixed:
            if loop.ties[p][4] == v:
                return self._outer(loop.ties[p][0])
        return self._name(v)

    def _items(self, scan: Scan) -> list[Any]:
        """The items of a body, but for its reads and writes of layers."""
        layers = {access for stack in scan.stacks for access in stack.accesses}
        return [self.ops[i] for i in self.items[scan.op] if i not in layers]

    # --- what is needed -----------------------------------------------------------------------------------------------

    def _layered(self, changing: Collection[int]) -> list[int]:
        """What in the first's body follows from the layers before, or from more than light work on what is given."""
        found = dict.fromkeys(sorted(changing))
        accesses = {access for stack in self.first.stacks for access in stack.accesses}
        writes = {i for i in accesses if self.graph.ops[i].name == WRITE}
        for i in self.items[self.first.op]:
            heavy = i not in accesses and not is_fused(self.graph.ops[i])
            if i not in writes and (heavy or any(v in found for v in self.reads[i])):
                found.update(dict.fromkeys(self.graph.ops[i].results))
        return list(found)

    def _goes_on(self, i: int, again: Collection[int], named: Mapping[Hashable, int]) -> bool:
        """Whether an item of the second's body only hands on, or does again, what the first has."""
        results = self.graph.ops[i].results
        return i in again or (bool(results) and all(self._name(v) in named for v in results))

    def _needed(self, again: Collection[int], named: Mapping[Hashable, int]) -> list[Hashable]:
        """Names of what the second's body does again, or reads of stacks, and reads."""
        second = self.graph.ops[self.second.op]
        reads = [v for i in self.items[second.index] if not self._goes_on(i, again, named) for v in self.reads[i]]
        return [n for v in (*reads, *(tie[3] for tie in second.ties)) if (n := self._name(v)) in named]

    def _wanted(self, again: Collection[int], named: Mapping[Hashable, int], instead: Collection[int]) -> set[int]:
        """What of the second's body is still read where some values are stacked."""
        second = self.graph.ops[self.second.op]
        wanted = {tie[3] for tie in second.ties}.difference(instead)
        for i in reversed(self.items[second.index]):
            if not self._goes_on(i, again, named) or not wanted.isdisjoint(self.graph.ops[i].results):
                wanted.update(v for v in self.reads[i] if v not in instead)
        return wanted


def keep(graph: Graph, ops: Sequence[Any], values: Sequence[Any], found: Kept) -> None:
    """Stack in the first loop what is kept, and read it in the second instead of doing it again; in place.

    Args:
      ops, values: handles, as `number_program` gives them.
    """
    pair = found.pair
    stack = min((b for _, b in pair.stacks), key=lambda b: min(b.accesses))
    place = ops[min(stack.accesses)]
    body, layer = place.block, place.operands[1 + stack.dim]
    kept = sorted(pair.kept)
    with place.context, place.location:
        first, stacks = stack_also(graph, ops, values, pair, kept)
    second, inside = carry(ops[pair.second.op], stacks)
    rows: dict[int, Any] = {}
    with place.context, place.location, ir.InsertionPoint(place):
        for v, made in zip(kept, stacks, strict=True):
            row = one_row(inside[made], layer, 0, row_type(values[v].type, 1))
            rows[v] = stablehlo.ReshapeOp(values[v].type, row).result
    for again, v in found.instead.items():
        values[again].replace_all_uses_with(rows[v])
    for i in found.opened:
        for result, operand in zip(ops[i].results, ops[i].operands, strict=True):
            result.replace_all_uses_with(operand)
        ops[i].erase()
    let_go(first, second, body, found.dropped)
