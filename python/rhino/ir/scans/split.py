"""Splits one loop: a copy per piece of its layers, each with its own trips and its own indices.

Owns the bodies of these copies. Values before and after the loop are the business of `Pieces`.
"""

from __future__ import annotations

from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect import functions
from rhino.dialect.constants import splat
from rhino.ir.scans.flow import ScanCut
from rhino.ir.scans.loops import READ, WRITE, Scan
from rhino.ir.scans.pieces import Pieces, bounds
from rhino.program.data import Op


def split_loop(pieces: Pieces, op: Op, scan: Scan) -> None:
    """One loop per piece, each over its own layers, and the other carried values from one to the next."""
    handle = pieces.ops[op.index]
    _outside(pieces, op, scan)
    edges = bounds(scan.trips, pieces.count)
    count = len(edges) - 1
    carried = list(handle.operands)
    at = {stack.position: stack for stack in scan.stacks if stack.position >= 0}
    idle = {p: pieces.flow.cuts[op.ties[p][0]] for p in scan.idle if op.ties[p][0] in pieces.flow.cuts}
    made: list[Any] = []
    trip = 0
    for j in range(count):
        piece = count - 1 - j if scan.reverse else j
        for p, (start, step) in scan.counters.items():
            carried[p] = splat(carried[p].type, start + step * trip)
        for p, stack in at.items():
            carried[p] = pieces.cut(stack.value, ScanCut(stack.dim, scan.trips))[piece]
        for p, cut in idle.items():
            # Any piece will do; one of the same layers binds the loop to no others.
            parts = pieces.cut(op.ties[p][0], cut)
            carried[p] = parts[min(piece, len(parts) - 1)]
        copy = handle.clone(ip=ir.InsertionPoint(handle))
        for p, value in enumerate(carried):
            copy.operands[p] = value
        for p in idle:
            _retype(copy, p, carried[p].type)
        trips = edges[piece + 1] - edges[piece]
        _body(pieces, copy, op, scan, piece, trip, trips)
        trip += trips
        made.append(copy)
        carried = [
            value if p in scan.fixed or p == scan.counter else copy.results[p] for p, value in enumerate(carried)
        ]
    for p, (operand, _, _, _, result) in enumerate(op.ties):
        if p in at:
            cut = ScanCut(at[p].dim, scan.trips)
            in_order = made[::-1] if scan.reverse else made
            found = [copy.results[p] for copy in in_order] if at[p].written else pieces.cut(operand, cut)
            pieces.pieces[result, cut] = found
        elif p in idle:
            pieces.pieces[result, idle[p]] = pieces.cut(operand, idle[p])
        elif p == scan.counter or p in scan.counters:
            if len(list(handle.results[p].uses)):
                start, step = scan.counters.get(p, (0, 1))
                end = splat(handle.results[p].type, start + step * scan.trips)
                pieces.replace(result, end)
        else:
            pieces.replace(result, carried[p])
    pieces.dead.append(handle)


def _outside(pieces: Pieces, op: Op, scan: Scan) -> None:
    """Give the loop whole what it takes whole."""
    stacked = {(access, 0) for stack in scan.stacks for access in stack.accesses}
    carried = {stack.position for stack in scan.stacks}
    carried.update(p for p in scan.idle if op.operands[p] in pieces.flow.cuts)
    for index in range(op.index, op.region_end):
        for slot, v in enumerate(pieces.graph.ops[index].operands):
            is_stack = slot in carried if index == op.index else (index, slot) in stacked
            if not is_stack and pieces.is_changed(v):
                pieces.ops[index].operands[slot] = pieces.whole(v)
    handle = pieces.ops[op.index]
    for nested in (handle, *functions.walk(handle)):
        for region in nested.regions:
            for block in region.blocks:
                pieces.terminator(block)


def _body(pieces: Pieces, copy: Any, op: Op, scan: Scan, piece: int, trip: int, trips: int) -> None:
    """Make a copy of a loop run `trips` trips, from trip `trip` of the original, on one piece of each stack."""
    condition, body = (region.blocks[0] for region in copy.regions)
    compare = next(view.operation for view in condition.operations if view.operation.name == "stablehlo.compare")
    counter = body.arguments[scan.counter]
    with copy.location, ir.InsertionPoint(copy):
        compare.operands[1] = splat(counter.type, trips)
    inside = [i for i in range(op.index + 1, op.region_end) if pieces.graph.ops[i].parent == op.index]
    skipped = len(condition.operations) - 1
    handles = dict(zip(inside[skipped:], [view.operation for view in body.operations][:-1], strict=True))
    increment = body.operations[len(body.operations) - 1].operands[scan.counter].owner.operation
    with copy.location, ir.InsertionPoint.at_block_begin(body):
        if trip:
            start = stablehlo.AddOp(counter, splat(counter.type, trip)).operation
            counter.replace_all_uses_except(start.results[0], [start, increment])
        local = counter
        if scan.reverse:
            last = splat(counter.type, trips - 1)
            local = stablehlo.SubtractOp(last, counter).result
        indices: dict[Any, Any] = {local.type: local}
        for stack in scan.stacks:
            cut = ScanCut(stack.dim, scan.trips)
            kind = pieces.piece_type(stack.value, cut, piece)
            if stack.position >= 0:
                _retype(copy, stack.position, kind)
            for access in stack.accesses:
                o = handles[access]
                slot = (1 if o.name == READ else 2) + stack.dim
                wanted = o.operands[slot].type
                if wanted not in indices:
                    indices[wanted] = stablehlo.ConvertOp(wanted, local).result
                o.operands[slot] = indices[wanted]
                if stack.position < 0:
                    o.operands[0] = pieces.cut(stack.value, cut)[piece]
                if o.name == WRITE:
                    o.results[0].set_type(kind)
    for index in reversed(scan.arithmetic):
        if not len(list(handles[index].results[0].uses)):
            handles[index].erase()
    if trip and not len(list(start.results[0].uses)):
        start.erase()


def _retype(loop: Any, position: int, kind: ir.Type) -> None:
    """Say what type is carried at a position."""
    for region in loop.regions:
        region.blocks[0].arguments[position].set_type(kind)
    loop.results[position].set_type(kind)
