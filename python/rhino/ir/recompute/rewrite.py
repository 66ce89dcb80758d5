"""Writes segments of the forward pass a second time, where the backward pass reads what they make.

Owns that rewrite of a block. What is made again is told (`rhino.recompute`); it decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect import functions
from rhino.program.operations import stablehlo as named
from rhino.recompute import Segment, Step

# What is not marked: it gives or takes something else each time.
_UNMARKED = named("rng infeed outfeed send recv")


def done_once(ops: Sequence[Any]) -> set[int]:
    """The operations that must not be done twice: they have effects, or give other numbers each time."""
    return {index for index, op in enumerate(ops) if is_done_once(op)}


def is_done_once(op: Any) -> bool:
    """Whether an operation has effects, or gives another number each time."""
    inside = functions.walk(op) if len(op.regions) else ()
    return any(inner.name in _UNMARKED or functions.acts(inner) for inner in (op, *inside))


def write_segments(step: Step, segments: Iterable[Segment], values: Sequence[Any], ops: Sequence[Any]) -> None:
    """Rewrite the program, in place.

    What a segment reads goes through a barrier together with the cotangent that its backward pass begins with: so the
    copies are not merged with the originals (`XLA: barriers-hold`), and are not made before they are needed. The
    backward pass reads it behind the barrier, too: or XLA made it again from what it is made of, and kept both.

    Args:
      values, ops: handles, as `number_program` gives them.
    """
    graph = step.graph
    readers: dict[int, list[int]] = {}
    for i in step.sides.backward:
        for v in step.sides.reads[i]:
            readers.setdefault(v, []).append(i)
    made = {v for i in step.sides.forward for v in graph.ops[i].results}.difference(step.sides.fixed)
    for segment in segments:
        place = ops[segment.before]
        held = list(segment.leaves)
        if segment.after >= 0:
            held.append(segment.after)
        handles = [values[v] for v in held]
        with place.context, place.location, ir.InsertionPoint(place):
            barrier = stablehlo.OptimizationBarrierOp(handles).operation if handles else None
            copies: dict[Any, Any] = dict(zip(handles, barrier.results, strict=True)) if barrier else {}
            late = copies.pop(values[segment.after]) if segment.after >= 0 else None
            instead = {v: copies[values[v]] for v in segment.leaves if v in made}
            functions.copy_all([ops[i] for i in segment.again], copies)
        instead |= {v: copies[values[v]] for v in segment.replaced}
        if late is not None:
            instead[segment.after] = late
        handed = {values[v]: copy for v, copy in instead.items()}
        for i in sorted({i for v in instead for i in readers.get(v, ()) if i >= segment.before}):
            _read_instead(ops[i], handed)


def _read_instead(item: Any, instead: dict[Any, Any]) -> None:
    for op in (item, *functions.walk(item)):
        for position, operand in enumerate(op.operands):
            if operand in instead:
                op.operands[position] = instead[operand]


def drop_unread(block: Any) -> int:
    """Takes out of a block, and of the loops in it, what nothing reads any more; how many operations."""
    dropped = 0
    for op in reversed([view.operation for view in block.operations][:-1]):
        pure = op.name.startswith(("stablehlo.", "chlo.")) and not is_done_once(op)
        if pure and len(op.results) and not any(True for result in op.results for _ in result.uses):
            op.erase()
            dropped += 1
    return dropped
