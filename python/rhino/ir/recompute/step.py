"""A training step with recomputation: read, chosen, written, and what came of it.

Owns the order of these. The choice is `rhino.recompute`'s.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.ir.import_graph import import_graph, number_program
from rhino.ir.recompute.rewrite import done_once, drop_unread, write_segments
from rhino.ir.recompute.scans import ScanPair, find_pairs, rewrite_pair
from rhino.ir.recompute.undo import find_kept, keep, merge_again
from rhino.ir.scans.loops import LOOP
from rhino.program.data import Graph
from rhino.program.recomputation import KEEP, POLICIES, Recomputation, Way
from rhino.recompute import FUSED, Step, choose, kept_bytes, products, read_step

# What `jax.checkpoint` makes is behind one, or is the second of two loops.
_BARRIER = "stablehlo.optimization_barrier"
# Of what the step keeps, the least that a way must spare to be one besides those that do less again.
_WORTH = 0.02


@dataclass(frozen=True, slots=True)
class Recomputed:
    """What came of it.

    Attributes:
      segments: of the forward pass, those never computed again included.
      recomputed: how many of them are computed again.
      loops: over layers that are computed again, layer by layer.
      operations: how many are done a second time.
      flops: of the products among them, in one step.
      reason: why nothing is computed again; empty if something is.
    """

    segments: int
    recomputed: int
    loops: int
    operations: int
    flops: int
    reason: str


def as_it_is(graph: Graph) -> Way:
    """The way of a program in which nothing is computed again but what the program does."""
    return Way(replace(KEEP.told, kept_bytes=kept_bytes(read_step(graph))))


def variants(module: ir.Module, graph: Graph | None = None, pieces: bool = False) -> list[Way]:
    """The ways to recompute that are worth a look, from least to most; each keeps clearly less than all before it.

    None is the step as it is. Costs about as much as reading the module; nothing is changed, and bytes are
    estimates, to choose by what to try: of loops they are those of the pairs that are in the step as it is.

    Args:
      graph: the module's program, where it was read before.
      pieces: whether loops over layers were split for stages: of these, too, only the first may be done again, and also
        those of one trip.

    Raises:
      PassError: a tensor has a dynamic shape, or a call is left.
    """
    graph = graph or import_graph(module)
    main = functions.find(module, "main")
    assert main is not None, "it was imported"
    ops = number_program(main)[1]
    once = done_once(ops)
    step = read_step(graph)
    found: list[Way] = []
    last = len(step.parts) - 1
    for policy in POLICIES:
        loops = list(find_pairs(graph, ops, policy, once, 1 if pieces else 2))
        every = choose(step, policy, last, once)
        for share in (1, 2, 3, 4) if last > 0 or loops else ():
            count = max(1, -(-last * share // 4))
            pairs = loops[: -(-len(loops) * share // 4)] if pieces else loops
            saved = sum(pair.saved_bytes(graph) for pair in pairs)
            spared = tuple(i for pair in pairs for stacks in pair.dropped(graph) for s in stacks for i in s.accesses)
            segments = [segment for segment in every if segment.part < count]
            if segments or pairs:
                flops = sum(pair.flops(graph) for pair in pairs) + sum(s.flops for s in segments)
                kept = kept_bytes(step, segments) - saved
                told = Recomputation(policy, count, len(segments), len(pairs), kept, flops)
                items = [i for pair in pairs for i in pair.again] + [i for s in segments for i in s.again]
                again = tuple(k for i in items for k in range(i, max(i + 1, graph.ops[i].region_end)))
                found.append(Way(told, again, spared))
    found.sort(key=lambda way: (way.told.flops, way.told.kept_bytes, way.told.count))
    least = kept_bytes(step)
    step_bytes = _WORTH * least
    less: list[Way] = []
    for way in found:
        if way.told.kept_bytes < least - step_bytes:
            least = way.told.kept_bytes
            less.append(way)
    return less


def recompute(module: ir.Module, policy: str, count: int = -1, most_loops: int = -1) -> Recomputed:
    """As rhino-recompute, in place. The module has roles and no calls.

    Args:
      count, most_loops: how many segments, and loops, the first ones; -1 is all. Loops of one trip are among those that
        are counted.
    """
    graph = import_graph(module)
    main = functions.find(module, "main")
    assert main is not None, "it was imported"
    graph, loops, again, flops = _rewrite_loops(module, graph, policy, 0 if not count else most_loops)
    values, ops = number_program(main)
    step = read_step(graph)
    segments = choose(step, policy, len(step.parts) if count < 0 else count, done_once(ops))
    if segments:
        write_segments(step, segments, values, ops)
        for block in {ops[s.before].block: None for s in segments}:
            drop_unread(block)
    return Recomputed(
        len(step.parts),
        len(segments),
        loops,
        again + sum(len(s.again) for s in segments),
        flops + sum(s.flops for s in segments),
        "" if segments or loops else _reason(step, count),
    )


@dataclass(frozen=True, slots=True)
class Undone:
    """What a step does not compute again any more: operations of one block, loops over layers, flops of products.

    `fused` counts further loops over layers, which stack less. `graph` is its program after that.
    """

    operations: int
    loops: int
    fused: int
    flops: int
    graph: Graph

    @property
    def changed(self) -> bool:
        """Whether it is another step."""
        return bool(self.operations or self.loops or self.fused)


def undone_ways(ways: Iterable[Way], undone: Undone) -> list[Way]:
    """Ways of what a step became, as ways of the step."""
    fuses = not (undone.operations or undone.loops)
    return [replace(way, told=replace(way.told, undoes=True, fuses=fuses)) for way in ways]


def may_undo(graph: Graph) -> bool:
    """Whether a step may compute something again that undo would take out; in linear time."""
    named = [op.name for op in graph.ops]
    return _BARRIER in named or named.count(LOOP) >= 2


def undo(module: ir.Module, graph: Graph | None = None) -> Undone:
    """As rhino-recompute with the policy `none`, in place; `graph` is the module's, where it was read before."""
    graph = graph or import_graph(module)
    before = _flops(graph)
    main = functions.find(module, "main")
    assert main is not None, "it was imported"
    operations, loops = merge_again(main.regions[0].blocks[0]), 0
    graph = import_graph(module)
    values, ops = number_program(main)
    # The loops are made anew, and a third one may read what the second makes.
    while (found := find_kept(graph, ops, values)) is not None:
        keep(graph, ops, values, found)
        loops += 1
        graph = import_graph(module)
        values, ops = number_program(main)
    graph, fused, *_ = _rewrite_loops(module, graph, FUSED)
    return Undone(operations, loops, fused, before - _flops(graph), graph)


def _flops(graph: Graph) -> int:
    return sum(products(graph, op) for op in graph.ops if op.parent < 0)


def _rewrite_loops(module: ir.Module, graph: Graph, policy: str, most: int = -1) -> tuple[Graph, int, int, int]:
    """Pairs of loops rewritten as a policy says, the first ones; -1 is all.

    Returns: the program after that; how many pairs, operations that are done again, and flops of products among them.
    """
    main = functions.find(module, "main")
    loops = again = flops = 0
    while most < 0 or loops < most:
        values, ops = number_program(main)
        pairs = _apart(graph, find_pairs(graph, ops, policy, done_once(ops), 2 if most < 0 else 1))
        if not pairs:
            break
        pairs = pairs[: most - loops] if most >= 0 else pairs
        blocks = {ops[pair.first.op].block: None for pair in pairs}
        for pair in pairs:
            loops, again, flops = loops + 1, again + len(pair.again), flops + pair.flops(graph)
            rewrite_pair(graph, ops, values, pair)
        for block in blocks:
            drop_unread(block)
        # The loops are made anew, and what is kept of one pair may be read by the next: the program is read again.
        graph = import_graph(module)
    return graph, loops, again, flops


def _apart(graph: Graph, pairs: Iterable[ScanPair]) -> list[ScanPair]:
    """The first pairs of loops beside each other that have none in common: what one stacks no other one reads."""
    found: list[ScanPair] = []
    taken: set[int] = set()
    for pair in pairs:
        both = {pair.first.op, pair.second.op}
        beside = not found or graph.ops[pair.first.op].parent == graph.ops[found[0].first.op].parent
        if beside and not both & taken:
            found.append(pair)
        taken |= both
    return found


def _reason(step: Step, count: int) -> str:
    if not any(a.role == "param" for a in step.graph.arguments):
        return "no argument is a parameter"
    if not step.sides.backward:
        return "the step has no backward pass"
    if count == 0:
        return "no segments are asked for"
    if len(step.parts) < 2:
        return "there is no narrow place in the forward pass to compute from"
    return "the backward pass reads nothing that would not be kept anyway"
