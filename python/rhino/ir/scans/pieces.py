"""Values in pieces: the pieces of each, the whole put together again, and sums known as their parts.

Owns these and where they are made; knows no operation but slice and concatenate. `scan_rewrite` fills it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.ir.scans.flow import ScanCut, ScanFlow
from rhino.ir.scans.loops import LOOP


def bounds(units: int, count: int) -> list[int]:
    """Where `units` layers are cut into at most `count` pieces, whose sizes differ by one at most."""
    pieces = min(units, count)
    return [units * k // pieces for k in range(pieces + 1)]


@dataclass(slots=True)
class Sum:
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


class Pieces:
    """The values of one program while it is rewritten, by number.

    `made` is what each value made in pieces is cut along, `pieces` are those known so far, `wholes` what stands for a
    value, `sums` those known as their parts. `dead` are the operations replaced. They stay in their place till the end:
    all that stands for their results is before them.
    """

    def __init__(self, flow: ScanFlow, values: Sequence[Any], count: int) -> None:
        self.flow, self.graph, self.ops, self.values, self.count = flow, flow.graph, flow.ops, values, count
        self.counts = Counts()
        self.made = _made_in_pieces(flow)
        self.pieces: dict[tuple[int, ScanCut], list[Any]] = {}
        self.wholes: dict[int, Any] = {}
        self.sums: dict[int, Sum] = {}
        self.dead: list[Any] = []
        self.arguments = {argument.value for argument in self.graph.arguments}
        self.ids = {value: v for v, value in enumerate(values)}

    def bounds(self, cut: ScanCut) -> list[int]:
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
            with self.values[v].location, self.before(v):
                if v in self.sums:
                    known = self.sums[v]
                    rest = [] if known.rest is None else [known.rest]
                    self.wholes[v] = functools.reduce(lambda a, b: combined(known.combine, a, b), [*known.parts, *rest])
                else:
                    self.wholes[v] = self.concatenate(v, self.pieces[v, self.made[v]], self.made[v])
                    self.counts.joined += 1
        return self.wholes[v]

    def concatenate(self, v: int, pieces: Sequence[Any], cut: ScanCut) -> Any:
        return stablehlo.ConcatenateOp(pieces, number(cut.dim), results=[self.values[v].type]).result

    def cut(self, v: int, cut: ScanCut) -> list[Any]:
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
        owner = whole.owner
        is_argument = isinstance(owner, ir.Block)
        at = ir.InsertionPoint(owner.operations[0]) if is_argument else ir.InsertionPoint.after(owner)
        # An argument has no line in the user's file; what reads it has.
        reader = next(iter(self.values[v].uses), None) if is_argument else None
        with self.values[v].location if reader is None else reader.owner.location, at:
            found = []
            for start, stop in itertools.pairwise(edges):
                low, high = [0] * len(shape), list(shape)
                low[cut.dim], high[cut.dim] = start * inner, stop * inner
                kind = self.piece_type(v, cut, len(found))
                found.append(
                    stablehlo.SliceOp(whole, array(low), array(high), array([1] * len(shape)), results=[kind]).result
                )
        self.pieces[v, cut] = found
        return found

    def before(self, v: int) -> ir.InsertionPoint:
        """The place where all is known that stands for a value that is replaced."""
        producer = self.graph.values[v].producer
        if producer >= 0:
            return ir.InsertionPoint(self.ops[producer])
        return ir.InsertionPoint.at_block_begin(self.values[v].owner)

    def replace(self, v: int, value: Any) -> None:
        """Let another value stand for one."""
        self.values[v].replace_all_uses_with(value)
        self.wholes[v] = value

    def piece_type(self, v: int, cut: ScanCut, k: int) -> ir.Type:
        edges = self.bounds(cut)
        shape = list(self.graph.values[v].shape)
        shape[cut.dim] = shape[cut.dim] // cut.units * (edges[k + 1] - edges[k])
        return ir.RankedTensorType.get(shape, self.values[v].type.element_type)

    def piece_types(self, v: int, cut: ScanCut) -> list[ir.Type]:
        """The types of all pieces of a value."""
        return [self.piece_type(v, cut, k) for k in range(len(self.bounds(cut)) - 1)]

    def terminator(self, block: ir.Block) -> None:
        """Give a block whole what it passes on."""
        end = block.operations[len(block.operations) - 1].operation
        for slot, value in enumerate(end.operands):
            v = self.ids.get(value)
            if v is not None and self.is_changed(v):
                end.operands[slot] = self.whole(v)


def _made_in_pieces(flow: ScanFlow) -> dict[int, ScanCut]:
    """What each value is cut along whose operation is done piece by piece."""
    made: dict[int, ScanCut] = {}
    for index, cloning in flow.clonings.items():
        for v, dim in zip(flow.graph.ops[index].results, cloning.results, strict=True):
            if dim >= 0:
                made[v] = ScanCut(dim, cloning.units)
    for scan in flow.active.values():
        for stack in scan.stacks:
            if stack.position >= 0:
                made[stack.result] = ScanCut(stack.dim, scan.trips)
        ties = flow.graph.ops[scan.op].ties
        made.update({ties[p][4]: flow.cuts[ties[p][0]] for p in scan.idle if ties[p][0] in flow.cuts})
    for index, positions in flow.tied.items():
        op = flow.graph.ops[index]
        for position, cut in positions.items():
            tie = op.ties[position]
            made.update(dict.fromkeys((tie[1], tie[2], tie[4]) if op.name == LOOP else tie[-1:], cut))
    return made


def combined(name: str, a: Any, b: Any) -> Any:
    return ir.Operation.create(name, results=[a.type], operands=[a, b]).results[0]


def array(values: Sequence[int]) -> ir.Attribute:
    return ir.DenseI64ArrayAttr.get(list(values))


def number(value: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
