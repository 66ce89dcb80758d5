"""What of a segment of the forward pass is kept for the backward pass, and what is computed again from it.

Owns the policies and the minimum cut behind them (docs/design/recompute.md). Changes no program.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rhino.program.data import Graph, Op
from rhino.program.fusible import is_fusible
from rhino.program.fusion import materialised, splats
from rhino.program.max_flow import FlowGraph
from rhino.program.memory import lifetimes
from rhino.program.operations import CONSTRAINTS, CONTRACTIONS, SOURCES
from rhino.recompute.segments import Holding, cut_points
from rhino.recompute.sides import LOOP, Sides, find_sides, products

# Of loops over layers: only what is done in the kernels that read it is done again.
FUSED = "fused"


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment of the forward pass, computed again.

    Attributes:
      part: which one of the step's segments.
      again: what is done again, in program order.
      leaves: values that it reads: kept ones, arguments, and others that are there anyway. No constants.
      replaced: values made again that the backward pass reads.
      before: the first backward item that reads one.
      after: a value of the backward pass that this item waits for, -1 if it waits for none.
      flops: of the products among the items, in one step.
    """

    part: int
    again: tuple[int, ...]
    leaves: tuple[int, ...]
    replaced: tuple[int, ...]
    before: int
    after: int
    flops: int


@dataclass(frozen=True, slots=True)
class Step:
    """A step with its segments.

    Attributes:
      parts: the segments of the forward pass, each a run of items; the last is never done again.
      kept: what the forward pass leaves in memory for the backward pass, as the program stands.
      crossing: values that are made in one segment and read in a later one.
    """

    graph: Graph
    sides: Sides
    parts: tuple[tuple[int, ...], ...]
    kept: frozenset[int]
    crossing: frozenset[int]


def read_step(graph: Graph) -> Step:
    """A step's passes and segments. Linear in operations but for the cutting."""
    sides = find_sides(graph)
    inside = set(sides.forward)
    at = {i: p for p, i in enumerate(sides.forward)}
    last = _last_reads(graph, sides, at)
    kept = _kept(graph, sides)
    spans = [
        Holding(at[i], last.get(v, at[i]), graph.values[v].nbytes, v in kept)
        for i in sides.forward
        for v in graph.ops[i].results
        if v not in sides.fixed and (v in last or v in kept)
    ]
    flops = [products(graph, graph.ops[i]) for i in sides.forward]
    head = next((i for i in reversed(sides.forward) if flops[at[i]]), -1)
    least = 2 * sum(graph.values[v].nbytes for v in graph.ops[head].results) if head >= 0 else 0
    points = cut_points(spans, flops, least) if sides.backward and kept else []
    edges = [-1, *points, len(sides.forward) - 1]
    parts = tuple(sides.forward[a + 1 : b + 1] for a, b in pairwise(edges))
    crossing = frozenset(
        v
        for i in inside
        for v in graph.ops[i].results
        if v not in sides.fixed and any(at[i] <= p < last.get(v, -1) for p in points)
    )
    return Step(graph, sides, parts, kept, crossing)


def choose(step: Step, policy: str, count: int, once: Collection[int] = ()) -> list[Segment]:
    """The first `count` segments, made again as a policy says; those in which nothing would be saved are left out.

    Args:
      policy: "layers" makes everything again that the backward pass reads; "dots" keeps what products of activations
        with parameters, and kernels, make.
      once: operations that must not be done twice, whatever the policy.
    """
    graph, sides = step.graph, step.sides
    maker = {v: i for i in (*sides.forward, *sides.backward) for v in graph.ops[i].results}
    readers: dict[int, list[int]] = {}
    for i in sides.backward:
        for v in sides.reads[i]:
            readers.setdefault(v, []).append(i)
    there = _never_kept(step)
    found = []
    for k, part in enumerate(step.parts[: max(0, min(count, len(step.parts) - 1))]):
        allowed = set(part)
        made = (v for i in part for v in graph.ops[i].results)
        targets = [v for v in made if v in readers and v not in step.crossing and not is_source(graph, v)]

        def free(v: int, allowed: set[int] = allowed) -> bool:
            made = maker.get(v)
            made_anyway = v in there or v in step.crossing or is_source(graph, v)
            return made is None or made_anyway or not (made in allowed or v in sides.fixed)

        kept, again = keep_least(
            graph, targets, maker, sides.reads, free, lambda i: price(graph, policy, graph.ops[i], sides.fixed, once)
        )
        segment = _segment(step, k, maker, readers, kept, again)
        if segment is not None:
            found.append(segment)
    return found


def kept_bytes(step: Step, segments: Iterable[Segment] = ()) -> int:
    """Bytes that the forward pass leaves for the backward pass, undivided, if segments are done again."""
    graph, sides = step.graph, step.sides
    done = list(segments)
    redone = {v for segment in done for i in step.parts[segment.part] for v in graph.ops[i].results}
    made = {v for i in sides.forward for v in graph.ops[i].results}
    read = {v for segment in done for v in segment.leaves if v in made and v not in sides.fixed}
    # What else the backward pass reads of them stays, but not what that is made of in the kernel that reads it.
    anyway = sides.fixed.union(*(segment.replaced for segment in done))
    read |= {v for i in sides.backward for v in sides.reads[i] if v in redone and v not in anyway}
    return sum(graph.values[v].nbytes for v in (step.kept - redone) | read)


def keep_least(
    graph: Graph,
    targets: Iterable[int],
    maker: Mapping[int, int],
    reads: Mapping[int, Sequence[int]],
    free: Callable[[int], bool],
    price: Callable[[int], int | None],
    nbytes: Callable[[int], int] | None = None,
) -> tuple[set[int], list[int]]:
    """The values to keep, of fewest bytes, and the items to do again, of these with least arithmetic.

    A minimum cut: each value has an edge of its bytes from its item to its readers, and each item one of its price from
    the source. Bytes count first: they are scaled by more than all prices together.

    Args:
      targets: values that are needed.
      maker, reads: the item that makes a value, and what an item reads.
      free: whether a value is there anyway.
      price: of doing an item again; None if it must not be done.
      nbytes: of keeping a value; by default its size.
    """
    size = nbytes or (lambda v: graph.values[v].nbytes)
    needed = [v for v in dict.fromkeys(targets) if not free(v)]
    values: dict[int, None] = dict.fromkeys(needed)
    items: dict[int, None] = {}
    for v in (pending := list(values)):  # grows
        item = maker.get(v)
        if item is None or item in items:
            continue
        items[item] = None
        for u in reads[item]:
            if u not in values and not free(u):
                values[u] = None
                pending.append(u)
    prices = {i: price(i) for i in items}
    scale = 1 + sum(p for p in prices.values() if p is not None)
    unlimited = 1 + scale * (1 + sum(map(size, values)))
    # The edges are reversed, so that of equal cuts the one is found that does least again.
    flow = FlowGraph(2 + len(items) + len(values))
    node_of_item = {i: 2 + k for k, i in enumerate(items)}
    node_of_value = {v: 2 + len(items) + k for k, v in enumerate(values)}
    for i, node in node_of_item.items():
        cost = prices[i]
        flow.add(node, 1, unlimited if cost is None else cost)
        for u in reads[i]:
            if u in node_of_value:
                flow.add(node, node_of_value[u], unlimited)
    for v, node in node_of_value.items():
        item = maker.get(v)
        flow.add(node, 1 if item is None else node_of_item[item], size(v) * scale)
    for v in needed:
        flow.add(0, node_of_value[v], unlimited)
    flow.maximise()
    behind = {node for node, reached in enumerate(flow.reached()) if reached}
    again = sorted(i for i, node in node_of_item.items() if node in behind)
    done = set(again)
    kept = {v for v, node in node_of_value.items() if node in behind and maker.get(v) not in done}
    return kept, again


def price(graph: Graph, policy: str, op: Op, fixed: Collection[int], once: Collection[int]) -> int | None:
    """What doing an operation again costs: its arithmetic; None where the policy does not do it again."""
    if op.index in once:
        return None
    if op.name == LOOP and products(graph, op):
        # Layers in a loop are computed again in the loop that goes back over them.
        return None
    if policy == "dots" and products(graph, op) and not _is_of_activations(op, fixed):
        return None
    if policy == FUSED and not is_fused(op):
        return None
    inside = graph.ops[op.index : max(op.index + 1, op.region_end)]
    return 1 + sum(o.flops * o.trips for o in inside)


def is_fused(op: Op) -> bool:
    """Whether what an operation makes is done again in the kernels that read it rather than read from memory."""
    return is_fusible(op) or op.name in CONSTRAINTS


def _is_of_activations(op: Op, fixed: Collection[int]) -> bool:
    """Whether a product is one per example of two values that layers made: scores, and values weighted by them."""
    if op.name not in CONTRACTIONS or op.rule is None or any(v in fixed for v in op.operands[:2]):
        return False
    left, right, made = ({f for dim in m for f in dim} for m in (*op.rule.operands[:2], op.rule.results[0]))
    return any(op.rule.factor_sizes[f] > 1 for f in left & right & made)


def _segment(
    step: Step,
    part: int,
    maker: Mapping[int, int],
    readers: Mapping[int, Sequence[int]],
    kept: set[int],
    again: Sequence[int],
) -> Segment | None:
    """What is made again, in its place; None where nothing is."""
    graph, sides = step.graph, step.sides
    made = {v for i in again for v in graph.ops[i].results}
    replaced = tuple(v for v in sorted(made) if v in readers and v not in step.crossing and v not in kept)
    if sides.fixed.issuperset(replaced):
        return None
    # Masks and casts that other segments read, too, may be read long before this one's turn.
    before = min(readers[v][0] for v in replaced if v not in sides.fixed)
    leaves = dict.fromkeys(v for i in again for v in sides.reads[i] if v not in made)
    flops = sum(products(graph, graph.ops[i]) for i in again)
    after = _awaited(step, maker, before)
    return Segment(
        part, tuple(again), tuple(v for v in leaves if not is_source(graph, v)), replaced, before, after, flops
    )


def is_source(graph: Graph, v: int) -> bool:
    """Whether a value is a constant, or one number throughout: it is there wherever it is read."""
    producer = graph.values[v].producer
    return producer >= 0 and (graph.ops[producer].name in SOURCES or v in splats(graph))


def _never_kept(step: Step) -> set[int]:
    """Of what depends on arguments alone, what the forward pass does not keep for the backward pass.

    What it does not read, such as slices of optimizer state, is made where it is wanted. What a loop reads is there
    around it; and the layers of a loop that was split have each their own slices of the parameters, which a barrier in
    front of the backward pass would bring together.
    """
    sides, ops = step.sides, step.graph.ops
    ahead = {v for i in sides.forward for v in sides.reads[i]}
    looped = {v for i in (*sides.forward, *sides.backward) if ops[i].name == LOOP for v in sides.reads[i]}
    return {v for v in sides.fixed if v not in ahead or v in looped}


def _awaited(step: Step, maker: Mapping[int, int], before: int) -> int:
    """The cotangent that the backward pass of a segment begins with: the largest value that its first items get."""
    graph, sides = step.graph, step.sides
    backward = set(sides.backward)
    for i in sides.backward:
        if i < before:
            continue
        given = [
            v for v in sides.reads[i] if maker.get(v, before) < before and maker[v] in backward and v not in sides.fixed
        ]
        if given:
            return max(given, key=lambda v: (graph.values[v].nbytes, -v))
    return -1


def _last_reads(graph: Graph, sides: Sides, at: Mapping[int, int]) -> dict[int, int]:
    """By value, the last position of the forward pass that reads it."""
    last: dict[int, int] = {}
    for i in sides.forward:
        for v in sides.reads[i]:
            last[v] = at[i]
    return last


def _kept(graph: Graph, sides: Sides) -> frozenset[int]:
    """What the forward pass leaves in memory for the backward pass, as the program stands."""
    if not sides.backward:
        return frozenset()
    life, real = lifetimes(graph), materialised(graph)
    turn = sides.backward[0]
    made = {v for i in sides.forward for v in graph.ops[i].results}
    read = {v for i in sides.backward for v in sides.reads[i]}
    return frozenset(v for v in made if real[v] and v not in sides.fixed and (v in read or life.reads[v] >= turn))
