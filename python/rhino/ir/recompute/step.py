"""A training step with recomputation, or without: read, chosen, written, and what came of it.

Owns the order of these. The choice is `rhino.recompute`'s.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.ir.import_graph import import_graph, number_program
from rhino.ir.recompute.rewrite import done_once, drop_unread, write_segments
from rhino.ir.recompute.scans import ScanPair, find_pairs, rewrite_pair
from rhino.ir.recompute.undo import BARRIER, find_kept, keep, merge_again
from rhino.ir.scans.loops import LOOP
from rhino.program.data import Graph
from rhino.recompute import FUSED, Step, choose, products, read_step


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


def may_undo(graph: Graph) -> bool:
    """Whether undo may change a step, which has a barrier or one loop behind another then; in linear time."""
    named = [op.name for op in graph.ops]
    return BARRIER in named or named.count(LOOP) >= 2


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
