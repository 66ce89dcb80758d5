"""A step that becomes a pipeline, with values computed again or all kept, for the joint search.

Owns the copies that are made so. Chooses nothing, and leaves the module as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from jaxlib.mlir import ir

from rhino.dialect.context import make_context, parse_bytes, to_bytecode
from rhino.ir.import_graph import import_graph
from rhino.ir.microbatch.programs import SplitPrograms
from rhino.ir.recompute.step import Undone, as_it_is, may_undo, recompute, undo, undone_ways, variants
from rhino.ir.scans.layers import split_scans
from rhino.program.data import Graph
from rhino.program.recomputation import KEEP, Way


@dataclass
class PipelineWays:
    """The ways in which a normalised module, which is cut as `step`, can compute values again; made when asked for.

    Loops over layers are split first: of the pieces, too, the first may be computed again, which are those of the first
    stages. `chooses`: whether there are ways besides the step's own; a step with a loop over micro-batches of its own
    has none.
    """

    module: ir.Module
    step: SplitPrograms
    chooses: bool = True
    made: dict[int, SplitPrograms] = field(default_factory=dict)

    @cached_property
    def ways(self) -> tuple[Way, ...]:
        """The step as it is, the plain one where that differs, then from least to most of either."""
        if not self.chooses or self.step.own:
            return (KEEP,)
        step = self.step.uncut_graph
        if not self._plain:
            return (as_it_is(step), *self._more(self.step.bytecode, step))
        code, graph, done = self._plain
        (plain, *more) = undone_ways([as_it_is(graph), *self._more(code, graph)], done)
        # Of loops that only stack less, all that computes something again does so beside that.
        added = () if plain.told.fuses else self._more(self.step.bytecode, step)
        return (as_it_is(step), plain, *added, *more)

    @staticmethod
    def _more(code: bytes, graph: Graph) -> list[Way]:
        return variants(parse_bytes(code, make_context()), graph, pieces=True)

    def base(self, way: int) -> Graph:
        """What a way adds to, as a program that is not cut: the step, or what it is with nothing computed again."""
        return self._plain[1] if self.ways[way].told.undoes and self._plain else self.step.uncut_graph

    def programs(self, way: int) -> SplitPrograms:
        """The step to be cut, with what a way computes again."""
        if way not in self.made:
            self.made[way] = self._make(way)
        return self.made[way]

    def _make(self, way: int) -> SplitPrograms:
        if not way:
            return self.step
        told = self.ways[way].told
        code = self._plain[0] if told.undoes and self._plain else self.step.bytecode
        if told.policy != KEEP.told.policy:
            copy = parse_bytes(code, make_context())
            recompute(copy, told.policy, told.count, told.loops)
            code = to_bytecode(copy)
        return self.step.with_way(code, told)

    @cached_property
    def _plain(self) -> tuple[bytes, Graph, Undone] | None:
        """The step without what its backward pass has to compute again; None where that is nothing."""
        if not may_undo(self.step.uncut_graph):
            return None
        copy = parse_bytes(to_bytecode(self.module), make_context())
        done = undo(copy)
        if not done.changed:
            return None
        split_scans(copy, self.step.pieces)
        return to_bytecode(copy), import_graph(copy), done
