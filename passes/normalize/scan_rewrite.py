"""Writes the program with its loops split and its stacked arrays in pieces, in place.

Owns the making of operations. What is cut and how is in the `Flow`; it decides nothing, except that reductions of
pieces are put together only where their whole is needed.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect import functions
from rhino.graph.data import Op
from rhino.passes.normalize.scan_flow import Cloning, Cut, Flow
from rhino.passes.normalize.scan_loops import READ, WRITE, Scan


def bounds(units: int, count: int) -> list[int]:
    """Where `units` layers are cut into at most `count` pieces, whose sizes differ by one at most."""
    pieces = min(units, count)
    return [units * k // pieces for k in range(pieces + 1)]


@dataclass(slots=True)
class _Sum:
    """A value that is known as its parts, to be put together by `combine`; `rest` is what no piece contributed."""

    combine: str
    parts: list[Any]
    rest: Any = None


@dataclass(slots=True)
class Counts:
    """How many arrays were put together or cut in the middle of the program, which costs memory or communication."""

    joined: int = 0
    cut: int = 0
    arguments: set[int] = field(default_factory=set)
    results: int = 0


class Rewriter:
    """One rewrite of one program.

    Args:
      flow: what to do.
      values: handles of the values, as `number_program` gives them.
      count: the most pieces of a stacked array.
    """

    def __init__(self, flow: Flow, values: Sequence[Any], count: int) -> None:
        self.flow, self.graph, self.ops, self.values, self.count = flow, flow.graph, flow.ops, values, count
        self.counts = Counts()
        # What each value made in pieces is cut along, the pieces of values, what stands for them as a whole, and those
        # known as their parts.
        self.made = _made_in_pieces(flow)
        self.pieces: dict[tuple[int, Cut], list[Any]] = {}
        self.wholes: dict[int, Any] = {}
        self.sums: dict[int, _Sum] = {}
        self.dead: list[Any] = []
        self.arguments = {argument.value: i for i, argument in enumerate(self.graph.arguments)}
        self.ids = {value: v for v, value in enumerate(values)}

    def run(self, main: Any) -> Counts:
        """Rewrites everything."""
        index, kept = 0, []
        while index < len(self.graph.ops):
            op, handle = self.graph.ops[index], self.ops[index]
            index += 1
            with handle.location, ir.InsertionPoint(handle):
                if op.index in self.flow.active:
                    self.scan(op, self.flow.active[op.index])
                    index = op.region_end
                elif op.index in self.flow.clonings:
                    self.clone(op, self.flow.clonings[op.index])
                elif not self.deferred(op):
                    self.keep(op)
                    if op.region_end > index:
                        kept.append(handle)
        for handle in kept:
            self.terminators(handle)
        self.results(main)
        for handle in reversed(self.dead):
            handle.erase()
        return self.counts

    # Values.

    def bounds(self, cut: Cut) -> list[int]:
        """Where a dimension is cut, in layers."""
        return bounds(cut.units, self.count)

    def is_changed(self, v: int) -> bool:
        """Whether a value no longer exists as it was."""
        return v in self.made or v in self.sums or v in self.wholes

    def whole(self, v: int) -> Any:
        """A value as it was, put together if it only exists in pieces."""
        if not self.is_changed(v):
            return self.values[v]
        if v not in self.wholes:
            # What is replaced stays in its place till the end: all that stands for it is before it.
            anchor = self.ops[self.graph.values[v].producer]
            with anchor.location, ir.InsertionPoint(anchor):
                if v in self.sums:
                    known = self.sums[v]
                    rest = [] if known.rest is None else [known.rest]
                    self.wholes[v] = functools.reduce(
                        lambda a, b: _combined(known.combine, a, b), [*known.parts, *rest]
                    )
                else:
                    self.wholes[v] = self.concatenate(v, self.pieces[v, self.made[v]], self.made[v])
                    self.counts.joined += 1
        return self.wholes[v]

    def concatenate(self, v: int, pieces: Sequence[Any], cut: Cut) -> Any:
        return stablehlo.ConcatenateOp(pieces, _number(cut.dim), results=[self.values[v].type]).result

    def cut(self, v: int, cut: Cut) -> list[Any]:
        """The pieces of a value, cut out of it if it exists as a whole only."""
        found = self.pieces.get((v, cut))
        if found is not None:
            return found
        whole = self.whole(v)
        if v in self.arguments:
            self.counts.arguments.add(v)
        else:
            self.counts.cut += 1
        shape = self.graph.values[v].shape
        edges = self.bounds(cut)
        inner = shape[cut.dim] // cut.units
        with self.after(v, whole):
            found = []
            for start, stop in itertools.pairwise(edges):
                low, high = [0] * len(shape), list(shape)
                low[cut.dim], high[cut.dim] = start * inner, stop * inner
                kind = self.piece_type(v, cut, len(found))
                found.append(
                    stablehlo.SliceOp(whole, _array(low), _array(high), _array([1] * len(shape)), results=[kind]).result
                )
        self.pieces[v, cut] = found
        return found

    def after(self, v: int, whole: Any) -> ir.InsertionPoint:
        """The first place where a value is known."""
        owner = whole.owner
        if isinstance(owner, ir.Block):
            return ir.InsertionPoint(owner.operations[0])
        return ir.InsertionPoint.after(owner)

    def piece_type(self, v: int, cut: Cut, k: int) -> ir.Type:
        edges = self.bounds(cut)
        shape = list(self.graph.values[v].shape)
        shape[cut.dim] = shape[cut.dim] // cut.units * (edges[k + 1] - edges[k])
        return ir.RankedTensorType.get(shape, self.values[v].type.element_type)

    # Operations.

    def keep(self, op: Op) -> None:
        """The operation stays as it is."""
        handle = self.ops[op.index]
        for slot, v in enumerate(op.operands):
            if self.is_changed(v):
                handle.operands[slot] = self.whole(v)

    def clone(self, op: Op, cloning: Cloning) -> None:
        """Do the operation once per piece."""
        handle = self.ops[op.index]
        units = cloning.units
        operands = [
            self.cut(v, Cut(dim, units)) if dim >= 0 else self.whole(v)
            for v, dim in zip(op.operands, cloning.operands, strict=True)
        ]
        made = []
        for k in range(len(bounds(units, self.count)) - 1):
            copy = handle.clone(ip=ir.InsertionPoint(handle))
            for slot, (dim, value) in enumerate(zip(cloning.operands, operands, strict=True)):
                copy.operands[slot] = value[k] if dim >= 0 else value
            for slot, (v, dim) in enumerate(zip(op.results, cloning.results, strict=True)):
                if dim >= 0:
                    copy.results[slot].set_type(self.piece_type(v, Cut(dim, units), k))
            cut = Cut(next((d for d in (*cloning.results, *cloning.operands) if d >= 0), 0), units)
            made.append(self.adjusted(copy, op, cut, k))
        for slot, (v, dim) in enumerate(zip(op.results, cloning.results, strict=True)):
            if dim >= 0:
                self.pieces[v, Cut(dim, units)] = [m.results[slot] for m in made]
            else:
                self.sums[v] = _Sum(cloning.combine, [m.results[slot] for m in made])
        self.dead.append(handle)

    def adjusted(self, copy: Any, op: Op, cut: Cut, k: int) -> Any:
        """Change the attributes of a copy that number elements of what is cut; what stands for it in the end."""
        name, attributes = op.name, copy.attributes
        edges = self.bounds(cut)
        if name == "stablehlo.constant":
            attributes["value"] = self.constant(op.results[0], ir.DenseElementsAttr(attributes["value"]), cut, k)
        elif name == "stablehlo.iota" and attributes["iota_dimension"].value == cut.dim and edges[k]:
            kind = copy.results[0].type
            start = edges[k] * (self.graph.values[op.results[0]].shape[cut.dim] // cut.units)
            with copy.location, ir.InsertionPoint.after(copy):
                offset = stablehlo.ConstantOp(_splat(kind, start)).result
                return stablehlo.AddOp(copy.results[0], offset).operation
        elif name == "stablehlo.slice":
            size = self.piece_type(op.results[0], cut, k).shape[cut.dim]
            attributes["limit_indices"] = _replaced(attributes["limit_indices"], cut.dim, size)
        elif name == READ:
            size = self.piece_type(op.results[0], cut, k).shape[cut.dim]
            attributes["slice_sizes"] = _replaced(attributes["slice_sizes"], cut.dim, size)
        elif name == "stablehlo.gather":
            self.gather(copy, op, k)
        return copy

    def constant(self, v: int, value: Any, cut: Cut, k: int) -> ir.Attribute:
        kind = self.piece_type(v, cut, k)
        if value.is_splat:
            return ir.DenseElementsAttr.get_splat(kind, value.get_splat_value())
        edges, inner = self.bounds(cut), self.graph.values[v].shape[cut.dim] // cut.units
        index: list[slice] = [slice(None)] * len(self.graph.values[v].shape)
        index[cut.dim] = slice(edges[k] * inner, edges[k + 1] * inner)
        piece = np.ascontiguousarray(np.array(value)[tuple(index)])
        return ir.DenseElementsAttr.get(piece, type=kind)

    def gather(self, copy: Any, op: Op, k: int) -> None:
        """A dimension taken whole stays taken whole."""
        cloning = self.flow.clonings[op.index]
        dim = cloning.operands[0]
        if dim >= 0 and list(copy.attributes["slice_sizes"])[dim] == self.graph.values[op.operands[0]].shape[dim]:
            size = self.piece_type(op.operands[0], Cut(dim, cloning.units), k).shape[dim]
            copy.attributes["slice_sizes"] = _replaced(copy.attributes["slice_sizes"], dim, size)

    def deferred(self, op: Op) -> bool:
        """Combine values known as their parts part by part: one total per piece, whatever number of values it is of."""
        if not any(v in self.sums for v in op.operands) or len(op.operands) != 2:
            return False
        given = [self.sums.get(v) for v in op.operands]
        known = [g for g in given if g is not None]
        if any(g.combine != op.name for g in known) or len({len(g.parts) for g in known}) != 1:
            return False
        rests = [self.whole(v) if g is None else g.rest for v, g in zip(op.operands, given, strict=True)]
        rest = [r for r in rests if r is not None]
        parts = known[0].parts
        if len(known) == 2:
            parts = [_combined(op.name, a, b) for a, b in zip(parts, known[1].parts, strict=True)]
        total = _combined(op.name, *rest) if len(rest) == 2 else (rest[0] if rest else None)
        self.sums[op.results[0]] = _Sum(op.name, parts, total)
        self.dead.append(self.ops[op.index])
        return True

    def scan(self, op: Op, scan: Scan) -> None:
        """One loop per piece, each over its own layers, and the other carried values from one to the next."""
        handle = self.ops[op.index]
        self.outside(op, scan)
        edges = bounds(scan.trips, self.count)
        count = len(edges) - 1
        carried = list(handle.operands)
        at = {stack.position: stack for stack in scan.stacks if stack.position >= 0}
        made: list[Any] = []
        trip = 0
        for j in range(count):
            piece = count - 1 - j if scan.reverse else j
            copy = handle.clone(ip=ir.InsertionPoint(handle))
            for p, stack in at.items():
                copy.operands[p] = self.cut(stack.value, Cut(stack.dim, scan.trips))[piece]
            for p, value in enumerate(carried):
                if p not in at:
                    copy.operands[p] = value
            trips = edges[piece + 1] - edges[piece]
            self.body(copy, op, scan, piece, trip, trips)
            trip += trips
            made.append(copy)
            carried = [
                value if p in scan.fixed or p == scan.counter else copy.results[p] for p, value in enumerate(carried)
            ]
        for p, (operand, _, _, _, result) in enumerate(op.ties):
            if p in at:
                cut = Cut(at[p].dim, scan.trips)
                in_order = made[::-1] if scan.reverse else made
                pieces = [copy.results[p] for copy in in_order] if at[p].written else self.cut(operand, cut)
                self.pieces[result, cut] = pieces
            elif p != scan.counter:
                handle.results[p].replace_all_uses_with(carried[p])
                self.wholes[result] = carried[p]
            elif len(list(handle.results[p].uses)):
                end = stablehlo.ConstantOp(_splat(carried[p].type, scan.trips)).result
                handle.results[p].replace_all_uses_with(end)
                self.wholes[result] = end
        self.dead.append(handle)

    def outside(self, op: Op, scan: Scan) -> None:
        """Give the loop whole what it takes whole."""
        stacked = {(access, 0) for stack in scan.stacks for access in stack.accesses}
        carried = {stack.position for stack in scan.stacks}
        for index in range(op.index, op.region_end):
            for slot, v in enumerate(self.graph.ops[index].operands):
                is_stack = slot in carried if index == op.index else (index, slot) in stacked
                if not is_stack and self.is_changed(v):
                    self.ops[index].operands[slot] = self.whole(v)
        self.terminators(self.ops[op.index])

    def terminators(self, handle: Any) -> None:
        """Give a region whole what it passes on from outside."""
        for nested in (handle, *functions.walk(handle)):
            for block in (block for region in nested.regions for block in region.blocks):
                end = block.operations[len(block.operations) - 1].operation
                for slot, value in enumerate(end.operands):
                    v = self.ids.get(value)
                    if v is not None and self.is_changed(v):
                        end.operands[slot] = self.whole(v)

    def body(self, copy: Any, op: Op, scan: Scan, piece: int, trip: int, trips: int) -> None:
        """Make a copy of a loop run `trips` trips, from trip `trip` of the original, on one piece of each stack."""
        condition, body = (region.blocks[0] for region in copy.regions)
        compare = next(view.operation for view in condition.operations if view.operation.name == "stablehlo.compare")
        counter = body.arguments[scan.counter]
        with copy.location, ir.InsertionPoint(copy):
            compare.operands[1] = stablehlo.ConstantOp(_splat(counter.type, trips)).result
        inside = [i for i in range(op.index + 1, op.region_end) if self.graph.ops[i].parent == op.index]
        skipped = len(condition.operations) - 1
        handles = dict(zip(inside[skipped:], [view.operation for view in body.operations][:-1], strict=True))
        increment = body.operations[len(body.operations) - 1].operands[scan.counter].owner.operation
        with copy.location, ir.InsertionPoint.at_block_begin(body):
            if trip:
                start = stablehlo.AddOp(counter, stablehlo.ConstantOp(_splat(counter.type, trip)).result).operation
                counter.replace_all_uses_except(start.results[0], [start, increment])
            local = counter
            if scan.reverse:
                last = stablehlo.ConstantOp(_splat(counter.type, trips - 1)).result
                local = stablehlo.SubtractOp(last, counter).result
            indices: dict[Any, Any] = {local.type: local}
            for stack in scan.stacks:
                cut = Cut(stack.dim, scan.trips)
                kind = self.piece_type(stack.value, cut, piece)
                if stack.position >= 0:
                    for block in (condition, body):
                        block.arguments[stack.position].set_type(kind)
                    copy.results[stack.position].set_type(kind)
                for access in stack.accesses:
                    o = handles[access]
                    slot = (1 if o.name == READ else 2) + stack.dim
                    wanted = o.operands[slot].type
                    if wanted not in indices:
                        indices[wanted] = stablehlo.ConvertOp(wanted, local).result
                    o.operands[slot] = indices[wanted]
                    if stack.position < 0:
                        o.operands[0] = self.cut(stack.value, cut)[piece]
                    if o.name == WRITE:
                        o.results[0].set_type(kind)
        for index in reversed(scan.arithmetic):
            if not len(list(handles[index].results[0].uses)):
                handles[index].erase()
        if trip and not len(list(start.results[0].uses)):
            start.erase()

    def results(self, main: Any) -> None:
        """Put the results of @main together right before it returns them."""
        block = main.regions[0].blocks[0]
        end = block.operations[len(block.operations) - 1].operation
        made: dict[int, Any] = {}
        for slot, v in enumerate(self.graph.outputs):
            if not self.is_changed(v):
                continue
            if v not in self.made:
                end.operands[slot] = self.whole(v)
                continue
            cut = self.made[v]
            if v not in made:
                with end.location, ir.InsertionPoint(end):
                    made[v] = self.concatenate(v, self.pieces[v, cut], cut)
            self.counts.results += 1
            end.operands[slot] = made[v]


def _made_in_pieces(flow: Flow) -> dict[int, Cut]:
    """What each value is cut along whose operation is done piece by piece."""
    made: dict[int, Cut] = {}
    for index, cloning in flow.clonings.items():
        for v, dim in zip(flow.graph.ops[index].results, cloning.results, strict=True):
            if dim >= 0:
                made[v] = Cut(dim, cloning.units)
    for scan in flow.active.values():
        for stack in scan.stacks:
            if stack.position >= 0:
                made[stack.result] = Cut(stack.dim, scan.trips)
    return made


def _combined(name: str, a: Any, b: Any) -> Any:
    return ir.Operation.create(name, results=[a.type], operands=[a, b]).results[0]


def _splat(kind: Any, value: int) -> ir.Attribute:
    element = kind.element_type
    number = (
        ir.FloatAttr.get(element, value) if isinstance(element, ir.FloatType) else ir.IntegerAttr.get(element, value)
    )
    return ir.DenseElementsAttr.get_splat(kind, number)


def _replaced(attribute: Any, dim: int, size: int) -> ir.Attribute:
    found = list(attribute)
    found[dim] = size
    return _array(found)


def _array(values: Sequence[int]) -> ir.Attribute:
    return ir.DenseI64ArrayAttr.get(list(values))


def _number(value: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
