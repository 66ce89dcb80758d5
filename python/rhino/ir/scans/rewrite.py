"""Writes the program with its loops split and its stacked arrays in pieces, in place.

Owns how each operation is done piece by piece. What is cut is in the `ScanFlow`; it decides nothing, except that
reductions of pieces are put together only where their whole is needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect.constants import splat
from rhino.ir.scans.flow import BARRIER, Cloning, ScanCut
from rhino.ir.scans.loops import READ
from rhino.ir.scans.pieces import Counts, Pieces, Sum, array, bounds, combined
from rhino.ir.scans.regions import Opened, open_region
from rhino.ir.scans.split import split_loop
from rhino.program.data import Op


class ScanRewriter(Pieces):
    """One rewrite of one program.

    Args:
      flow: what to do.
      values: handles of the values, as `number_program` gives them.
      count: the most pieces of a stacked array.
    """

    def run(self, main: Any) -> Counts:
        """Rewrites everything."""
        index = 0
        kept: list[Any] = []
        opened: list[Opened] = []
        while index < len(self.graph.ops):
            op, handle = self.graph.ops[index], self.ops[index]
            index += 1
            with handle.location, ir.InsertionPoint(handle):
                if op.index in self.flow.active:
                    split_loop(self, op, self.flow.active[op.index])
                    index = op.region_end
                elif op.index in self.flow.clonings:
                    self.clone(op, self.flow.clonings[op.index])
                elif op.index in self.flow.tied:
                    opened.append(open_region(self, op, self.flow.tied[op.index]))
                elif not self.deferred(op):
                    self.keep(op)
                    if op.ties and op.name != BARRIER:
                        kept.append(handle)
        for handle in kept:
            for region in handle.regions:
                self.terminator(region.blocks[0])
        for region in opened:
            region.close(self)
        self.results(main)
        for handle in reversed(self.dead):
            handle.erase()
        for region in opened:
            region.drop_old_arguments()
        return self.counts

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
            self.cut(v, ScanCut(dim, units)) if dim >= 0 else self.whole(v)
            for v, dim in zip(op.operands, cloning.operands, strict=True)
        ]
        made = []
        for k in range(len(bounds(units, self.count)) - 1):
            copy = handle.clone(ip=ir.InsertionPoint(handle))
            for slot, (dim, value) in enumerate(zip(cloning.operands, operands, strict=True)):
                copy.operands[slot] = value[k] if dim >= 0 else value
            for slot, (v, dim) in enumerate(zip(op.results, cloning.results, strict=True)):
                if dim >= 0:
                    copy.results[slot].set_type(self.piece_type(v, ScanCut(dim, units), k))
            cut = ScanCut(next((d for d in (*cloning.results, *cloning.operands) if d >= 0), 0), units)
            made.append(self.adjusted(copy, op, cut, k))
        for slot, (v, dim) in enumerate(zip(op.results, cloning.results, strict=True)):
            if dim >= 0:
                self.pieces[v, ScanCut(dim, units)] = [m.results[slot] for m in made]
            else:
                self.sums[v] = Sum(cloning.combine, [m.results[slot] for m in made])
        self.dead.append(handle)

    def adjusted(self, copy: Any, op: Op, cut: ScanCut, k: int) -> Any:
        """Change the attributes of a copy that number elements of what is cut; what stands for it in the end."""
        name, attributes = op.name, copy.attributes
        edges = self.bounds(cut)
        if name == "stablehlo.constant":
            attributes["value"] = self.constant(op.results[0], ir.DenseElementsAttr(attributes["value"]), cut, k)
        elif name == "stablehlo.iota" and attributes["iota_dimension"].value == cut.dim and edges[k]:
            kind = copy.results[0].type
            start = edges[k] * (self.graph.values[op.results[0]].shape[cut.dim] // cut.units)
            with copy.location, ir.InsertionPoint.after(copy):
                offset = splat(kind, start)
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

    def constant(self, v: int, value: Any, cut: ScanCut, k: int) -> ir.Attribute:
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
            size = self.piece_type(op.operands[0], ScanCut(dim, cloning.units), k).shape[dim]
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
            parts = [combined(op.name, a, b) for a, b in zip(parts, known[1].parts, strict=True)]
        total = combined(op.name, *rest) if len(rest) == 2 else (rest[0] if rest else None)
        self.sums[op.results[0]] = Sum(op.name, parts, total)
        self.dead.append(self.ops[op.index])
        return True

    def results(self, main: Any) -> None:
        """Put the results of @main together right before it returns them."""
        block = main.regions[0].blocks[0]
        end = block.operations[len(block.operations) - 1].operation
        for slot, v in enumerate(self.graph.outputs):
            cut = self.made.get(v)
            if cut is None:
                if self.is_changed(v):
                    end.operands[slot] = self.whole(v)
                continue
            # One for each result, though others may return the same: stages then hold pieces of each.
            with end.location, ir.InsertionPoint(end):
                end.operands[slot] = self.concatenate(v, self.pieces[v, cut], cut)
            self.counts.results += 1


def _replaced(attribute: Any, dim: int, size: int) -> ir.Attribute:
    found = list(attribute)
    found[dim] = size
    return array(found)
