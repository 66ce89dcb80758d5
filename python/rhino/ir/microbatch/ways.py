"""A step that becomes a pipeline, with values computed again or all kept, for the joint search.

Owns the copies that are made so. Chooses nothing, and leaves the module as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from jaxlib.mlir import ir

from rhino.deadline import Deadline
from rhino.dialect.context import make_context, parse_bytes, to_bytecode
from rhino.ir.import_graph import import_graph
from rhino.ir.microbatch.programs import SplitPrograms
from rhino.ir.ordered_products import order_products
from rhino.ir.recompute.step import Undone, may_undo, recompute, undo
from rhino.ir.recompute.ways import all_ways, as_it_is, undone_ways
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
        graph = self.step.uncut_graph
        step = parse_bytes(self.step.bytecode, make_context()), graph
        if not self._plain:
            return all_ways([as_it_is(graph)], step, None, pieces=True)
        code, graph, done = self._plain
        known = [as_it_is(step[1]), *undone_ways([as_it_is(graph)], done)]
        return all_ways(known, step, (parse_bytes(code, make_context()), graph, done), pieces=True)

    def base(self, way: int) -> Graph:
        """What a way adds to, as a program that is not cut: the step, or what it is with nothing computed again."""
        return self._plain[1] if self.ways[way].told.undoes and self._plain else self.step.uncut_graph

    @property
    def pieces(self) -> int:
        """What loops over layers are split into, at most."""
        return self.step.pieces

    def finer(self, pieces: int, deadline: Deadline) -> PipelineWays | None:
        """The same with loops over layers split into so many; None where none can be. Raises PassError as the step."""
        step = SplitPrograms.of(self.module, "O1", self.step.statistics, deadline=deadline, pieces=pieces)
        return None if step.bytecode == self.step.bytecode else PipelineWays(self.module, step, self.chooses)

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
        copy = parse_bytes(code, make_context())
        if told.policy != KEEP.told.policy:
            recompute(copy, told.policy, told.count, told.loops)
        order_products(copy)
        return self.step.with_way(to_bytecode(copy), told)

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
