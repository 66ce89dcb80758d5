"""Operations with regions, and barriers, that pass on pieces instead of one array: loops that are not split, branches.

Owns their change of signature. Their bodies are rewritten like the rest of the program, between opening and closing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxlib.mlir import ir

from rhino.dialect.functions import attributes_of
from rhino.dialect.sdy import SHARDING
from rhino.ir.scans.flow import BARRIER, ScanCut
from rhino.ir.scans.loops import LOOP
from rhino.ir.scans.pieces import Pieces
from rhino.program.data import Op


@dataclass(frozen=True, slots=True)
class Opened:
    """An operation made anew, whose blocks are moved to it but end as they did, and keep their old arguments too."""

    op: Op
    handle: Any
    positions: Mapping[int, ScanCut]

    def close(self, pieces: Pieces) -> None:
        """Let its blocks pass on pieces."""
        for r, region in enumerate(self.handle.regions):
            end = region.blocks[0].operations[len(region.blocks[0].operations) - 1].operation
            if self.op.name == LOOP and r == 0:
                pieces.terminator(region.blocks[0])
                continue
            passed: list[Any] = []
            for position, tie in enumerate(self.op.ties):
                v = tie[3] if self.op.name == LOOP else tie[r]
                cut = self.positions.get(position)
                passed += [pieces.whole(v)] if cut is None else pieces.cut(v, cut)
            with end.location, ir.InsertionPoint(end):
                ir.Operation.create(end.name, operands=passed)
            end.erase()

    def drop_old_arguments(self) -> None:
        """Once nothing reads them."""
        if self.op.name == LOOP:
            for region in self.handle.regions:
                for _ in self.op.ties:
                    region.blocks[0].erase_argument(0)


def open_region(pieces: Pieces, op: Op, positions: Mapping[int, ScanCut]) -> Opened:
    """Make the operation anew at the insertion point, with pieces for what is passed at some positions."""
    handle = pieces.ops[op.index]
    operands: list[Any] = []
    for position, v in enumerate(op.operands):
        cut = positions.get(position) if op.name in (LOOP, BARRIER) else None
        operands += [pieces.whole(v)] if cut is None else pieces.cut(v, cut)
    kinds: list[ir.Type] = []
    for position, v in enumerate(op.results):
        cut = positions.get(position)
        kinds += [pieces.values[v].type] if cut is None else pieces.piece_types(v, cut)
    # A sharding names results by position.
    attributes = {name: attribute for name, attribute in attributes_of(handle).items() if name != SHARDING}
    made = ir.Operation.create(op.name, kinds, operands, attributes, regions=len(handle.regions))
    _bind(pieces, op.results, positions, list(made.results))
    for r, region in enumerate(list(handle.regions)):
        for block in list(region.blocks):
            block.append_to(made.regions[r])
            if op.name == LOOP:
                count = len(block.arguments)
                arguments = [tie[1 + r] for tie in op.ties]
                for operand in operands:
                    block.add_argument(operand.type, handle.location)
                _bind(pieces, arguments, positions, list(block.arguments)[count:])
    pieces.dead.append(handle)
    return Opened(op, made, positions)


def _bind(pieces: Pieces, values: Any, positions: Mapping[int, ScanCut], new: list[Any]) -> None:
    """Say what stands for some values, one after the other: several new ones where they are in pieces."""
    for position, v in enumerate(values):
        cut = positions.get(position)
        if cut is None:
            pieces.replace(v, new.pop(0))
        else:
            count = len(pieces.bounds(cut)) - 1
            pieces.pieces[v, cut] = new[:count]
            del new[:count]
