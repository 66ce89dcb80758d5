"""A training step with recomputation: read, chosen, written, and what came of it.

Owns the order of these. The choice is `rhino.recompute`'s.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.ir.import_graph import import_graph, number_program
from rhino.ir.recompute.rewrite import done_once, drop_unread, write_segments
from rhino.ir.recompute.scans import find_pairs, rewrite_pair
from rhino.recompute import Step, choose, read_step


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


def recompute(module: ir.Module, policy: str, count: int = -1) -> Recomputed:
    """As rhino-recompute, in place. The module has roles and no calls."""
    graph = import_graph(module)
    main = functions.find(module, "main")
    assert main is not None, "it was imported"
    values, ops = number_program(main)
    loops = again = flops = 0
    # The loops are made anew, and what is kept of one pair may be read by the next: the program is read again.
    while count and (pair := next(find_pairs(graph, ops, policy, done_once(ops)), None)) is not None:
        block = ops[pair.first.op].block
        loops, again, flops = loops + 1, again + len(pair.again), flops + pair.flops(graph)
        rewrite_pair(graph, ops, values, pair)
        drop_unread(block)
        graph = import_graph(module)
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
        again + sum(len(s.items) for s in segments),
        flops + sum(s.flops for s in segments),
        "" if segments or loops else _reason(step, count),
    )


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
