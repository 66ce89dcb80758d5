"""Layers in a loop, computed again in the loop that goes back over them: finding the two loops, and rewriting them.

Owns pairs of loops: what the first stacks for the second, layer by layer, and what of it is kept instead. How a loop is
read is `rhino.ir.scans.loops`'; what to keep is `rhino.recompute`'s choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect import functions
from rhino.dialect.constants import splat
from rhino.dialect.loops import narrow, widen
from rhino.ir.recompute.rewrite import drop_unread
from rhino.ir.scans.loops import LOOP, WRITE, Scan, Stack, Uses, read_scan
from rhino.program.data import Graph
from rhino.program.regions import body_items, item_reads
from rhino.recompute import fixed_values, keep_least, price, products


@dataclass(frozen=True, slots=True)
class ScanPair:
    """A loop over layers, and the loop that goes back over what it stacked.

    `stacks` are those that only the second reads: the first's and the second's reading of each. `kept` are the values
    of the first's body that are stacked from now on, `again` its operations that the second does again.
    """

    first: Scan
    second: Scan
    stacks: tuple[tuple[Stack, Stack], ...]
    kept: frozenset[int]
    again: tuple[int, ...]

    def flops(self, graph: Graph) -> int:
        """Of the products that are done again, in one step."""
        return sum(products(graph, graph.ops[i]) for i in self.again)

    def dropped(self, graph: Graph) -> list[tuple[Stack, Stack]]:
        """The stacks that are not kept."""
        return [(a, b) for a, b in self.stacks if written(graph, a) not in self.kept]

    def saved_bytes(self, graph: Graph) -> int:
        """How much less is stacked."""
        old = {written(graph, a) for a, _ in self.stacks}
        size = sum(graph.values[v].nbytes for v in old) - sum(graph.values[v].nbytes for v in self.kept)
        return size * self.first.trips


def written(graph: Graph, stack: Stack) -> int:
    """The value of the body that a stack is written with."""
    return graph.ops[stack.accesses[0]].operands[1]


def find_pairs(
    graph: Graph, ops: Sequence[Any], policy: str, once: set[int], least_trips: int = 2
) -> Iterator[ScanPair]:
    """The pairs of loops in which a policy keeps less, in program order, of so many trips at least."""
    uses = Uses.of(graph)
    scans = [s for op in graph.ops if op.name == LOOP and isinstance(s := read_scan(graph, ops, uses, op), Scan)]
    for k, first in enumerate(scans):
        if first.trips < least_trips:
            continue
        for second in scans[k + 1 :]:
            if graph.ops[first.op].parent != graph.ops[second.op].parent or first.trips != second.trips:
                continue
            stacks = tuple(shared(graph, uses, first, second))
            pair = _chosen(graph, first, second, stacks, policy, once) if stacks else None
            if pair is not None and pair.dropped(graph) and pair.saved_bytes(graph) > 0:
                yield pair


def shared(graph: Graph, uses: Uses, first: Scan, second: Scan) -> Iterator[tuple[Stack, Stack]]:
    """The stacks that one loop writes and only the other one reads, by the same dimension of layers."""
    read = {stack.value: stack for stack in second.stacks if not stack.written}
    for stack in first.stacks:
        other = read.get(stack.result)
        if other is None or not stack.written or other.dim != stack.dim or len(stack.accesses) != 1:
            continue
        inside = range(second.op, graph.ops[second.op].region_end)
        alone = all(r in inside for r in uses.readers[stack.result]) and stack.result not in graph.outputs
        passed = all(place == (second.op, other.position) for place in uses.passed.get(stack.result, ()))
        unread = other.position < 0 or (
            not uses.readers[other.result] and not uses.passed.get(other.result) and other.result not in graph.outputs
        )
        same = all(
            graph.values[graph.ops[a].results[0]].shape == graph.values[written(graph, stack)].shape
            for a in other.accesses
        )
        if alone and passed and unread and same:
            yield stack, other


def _chosen(
    graph: Graph,
    first: Scan,
    second: Scan,
    stacks: tuple[tuple[Stack, Stack], ...],
    policy: str,
    once: set[int],
) -> ScanPair | None:
    items = body_items(graph, first.op)
    reads = {i: item_reads(graph, graph.ops[i]) for i in items}
    maker = {v: i for i in items for v in graph.ops[i].results}
    ties = graph.ops[first.op].ties
    counters = {first.counter, *first.counters}
    changing = {tie[2] for p, tie in enumerate(ties) if p not in first.fixed and p not in counters}
    fixed = fixed_values(graph, items, reads, changing)
    targets = [written(graph, a) for a, _ in stacks]
    writes = {a for s in first.stacks for a in s.accesses if graph.ops[a].name == WRITE}

    def free(v: int) -> bool:
        return v not in maker and v not in changing

    kept, again = keep_least(
        graph, targets, maker, reads, free,
        lambda i: None if i in writes else price(graph, policy, graph.ops[i], fixed, once),
    )  # fmt: skip
    stacked = {tie[2] for p, tie in enumerate(ties) for s in first.stacks if s.written and s.position == p}
    if stacked & kept:
        return None  # it reads what it has stacked so far
    return ScanPair(first, second, stacks, frozenset(kept), tuple(again))


def rewrite_pair(graph: Graph, ops: list[Any], values: list[Any], pair: ScanPair) -> None:
    """Stack what is kept instead of what is dropped, and make the rest again in the second loop; in place.

    Args:
      ops, values: handles, as `number_program` gives them. Those of the two loops become those of the new ones, so that
        a pair of other loops can be rewritten next.
    """
    dropped = pair.dropped(graph)
    reads = [ops[access] for _, b in dropped for access in b.accesses]
    place = ops[min(access for _, b in dropped for access in b.accesses)]
    body = place.block
    layer = place.operands[1 + dropped[0][1].dim]
    old = {written(graph, a): b for a, b in pair.stacks}
    new = sorted(v for v in pair.kept if v not in old)
    given = _given(graph, ops, values, pair)
    with place.context, place.location:
        first, stacks = stack_also(graph, ops, values, pair, new)
    second, inside = carry(ops[pair.second.op], [*given.values(), *stacks])
    copies: dict[Any, Any] = {}
    with place.context, place.location, ir.InsertionPoint(place):
        for v, handle in given.items():
            copies[values[v]] = inside.get(handle, handle)
        for v, stack in zip(new, stacks, strict=True):
            row = one_row(inside[stack], layer, 0, row_type(values[v].type, 1))
            copies[values[v]] = stablehlo.ReshapeOp(values[v].type, row).result
        for v, stack in old.items():
            if v in pair.kept:
                read = ops[stack.accesses[0]]
                copies[values[v]] = one_row(read.operands[0], layer, stack.dim, values[v].type)
        _count(graph, values, pair, layer, copies)
        functions.copy_all([ops[i] for i in pair.again], copies)
    for a, b in dropped:
        for access in b.accesses:
            ops[access].results[0].replace_all_uses_with(copies[values[written(graph, a)]])
    for read in reads:
        read.erase()
    gone = [b.position for _, b in dropped if b.position >= 0]
    loops = let_go(first, second, body, dropped)
    for index, loop, without in zip(
        (pair.first.op, pair.second.op), loops, ([a.position for a, _ in dropped], gone), strict=True
    ):
        ops[index] = loop
        kept = [v for position, v in enumerate(graph.ops[index].results) if position not in without]
        # What is carried besides comes behind.
        for v, result in zip(kept, loop.results, strict=False):
            values[v] = result


def let_go(first: Any, second: Any, body: Any, dropped: Sequence[tuple[Stack, Stack]]) -> tuple[Any, Any]:
    """Takes stacks that nothing reads out of the loop that writes them and of the second one, with this body.

    Returns: the new loops.
    """
    drop_unread(body)
    second = narrow(second, [b.position for _, b in dropped if b.position >= 0])
    block = first.regions[1].blocks[0]
    end = block.operations[len(block.operations) - 1].operation
    for a, _ in dropped:
        end.operands[a.position] = block.arguments[a.position]
    drop_unread(block)
    return narrow(first, [a.position for a, _ in dropped]), second


def _given(graph: Graph, ops: Sequence[Any], values: Sequence[Any], pair: ScanPair) -> dict[int, Any]:
    """What the operations read that is the same in all trips: by value in the body, what it is in front of the loop."""
    loop = graph.ops[pair.first.op]
    fixed = {tie[2]: p for p, tie in enumerate(loop.ties) if p in pair.first.fixed}
    arguments = {tie[2] for tie in loop.ties}
    within = {v for op in graph.ops[loop.index + 1 : loop.region_end] for v in op.results}
    found: dict[int, Any] = {}
    for i in pair.again:
        for v in item_reads(graph, graph.ops[i]):
            if v in fixed:
                found[v] = ops[loop.index].operands[fixed[v]]
            elif v not in within and v not in arguments:
                found[v] = values[v]
    return found


def stack_also(
    graph: Graph, ops: Sequence[Any], values: Sequence[Any], pair: ScanPair, new: Sequence[int]
) -> tuple[Any, list[Any]]:
    """The first loop with more stacks, and these."""
    loop = ops[pair.first.op]
    if not new:
        return loop, []
    access = pair.stacks[0][0]
    layer = ops[access.accesses[0]].operands[2 + access.dim]

    def following(arguments: Sequence[Any]) -> Sequence[Any]:
        made = []
        for v, argument in zip(new, arguments, strict=True):
            kind = row_type(values[v].type, 1)
            dims = ir.DenseI64ArrayAttr.get(list(range(1, kind.rank)))
            row = stablehlo.BroadcastInDimOp(kind, values[v], dims).result
            at = [layer, *[splat(layer.type, 0)] * (kind.rank - 1)]
            made.append(stablehlo.DynamicUpdateSliceOp(argument, row, at).result)
        return made

    count = len(loop.results)
    wider = widen(loop, [row_type(values[v].type, pair.first.trips) for v in new], following)
    loop.erase()
    return wider, list(wider.results)[count:]


def row_type(kind: Any, trips: int) -> Any:
    return ir.RankedTensorType.get([trips, *kind.shape], kind.element_type)


def carry(loop: Any, wanted: Sequence[Any]) -> tuple[Any, dict[Any, Any]]:
    """The loop in which all that is wanted is carried, but for constants; and what each is called inside."""
    block = loop.regions[1].blocks[0]
    end = block.operations[len(block.operations) - 1].operation
    same = [p for p, argument in enumerate(block.arguments) if end.operands[p] == argument]
    known = {loop.operands[p] for p in same}
    more = [v for v in dict.fromkeys(wanted) if v not in known and not _is_constant(v)]
    count = len(loop.operands)
    wider = loop
    if more:
        wider = widen(loop, [v.type for v in more], lambda arguments: arguments, starts=more)
        loop.erase()
    arguments = wider.regions[1].blocks[0].arguments
    inside = {wider.operands[p]: arguments[p] for p in same}
    return wider, inside | {v: arguments[count + k] for k, v in enumerate(more)}


def _is_constant(value: Any) -> bool:
    return isinstance(value, ir.OpResult) and value.owner.operation.name == "stablehlo.constant"


def one_row(stack: Any, layer: Any, dim: int, kind: Any) -> Any:
    """One layer of a stack, of a given type."""
    at = [splat(layer.type, 0) if d != dim else layer for d in range(kind.rank)]
    sizes = ir.DenseI64ArrayAttr.get(list(kind.shape))
    return stablehlo.DynamicSliceOp(stack, at, sizes).result


def _count(graph: Graph, values: Sequence[Any], pair: ScanPair, layer: Any, copies: dict[Any, Any]) -> None:
    """The first loop's counters in the trip that has had a layer."""
    ties = graph.ops[pair.first.op].ties
    trip = layer
    if pair.first.reverse:
        trip = stablehlo.SubtractOp(splat(layer.type, pair.first.trips - 1), layer).result
    for position, (start, step) in {pair.first.counter: (0, 1), **pair.first.counters}.items():
        argument = values[ties[position][2]]
        at = trip if trip.type == argument.type else stablehlo.ConvertOp(argument.type, trip).result
        if step != 1:
            at = stablehlo.MulOp(at, splat(at.type, step)).result
        if start:
            at = stablehlo.AddOp(at, splat(at.type, start)).result
        copies[argument] = at
