"""A step that stays one program, as loops over parts of its batch and with values computed again, for the search.

Owns the copies that are made so. Chooses nothing, and leaves the module as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.dialect.context import make_context, parse_bytes, to_bytecode
from rhino.ir.diagnostics import PassError
from rhino.ir.import_graph import import_graph
from rhino.ir.microbatch.accumulate import accumulate_in_loops
from rhino.ir.microbatch.accumulation import Accumulation
from rhino.ir.microbatch.adopt import adopt, own_loop
from rhino.ir.microbatch.programs import count_examples, own_loop_error
from rhino.ir.microbatch.split import split_microbatch
from rhino.ir.offload import offload
from rhino.ir.ordered_products import order_products
from rhino.ir.recompute.step import Undone, may_undo, recompute, undo
from rhino.ir.recompute.ways import all_ways, as_it_is, undone_ways
from rhino.program.data import Graph
from rhino.program.recomputation import KEEP, Way

# After so many numbers of parts that were refused, others are, too.
_ATTEMPTS = 5


@dataclass
class OneProgram:
    """A normalised module and its program, `whole`; cut into parts, and made to compute again, when asked for.

    `statistics`: as of rhino-split-microbatch. `parts`: those asked for, 0 for any number. `chooses`: whether there are
    ways to recompute besides the step's own. `hosted`: of how many updates the hosts keep the state, in whatever form,
    besides those that they keep already; None where they keep none. `refused` says why it could not be cut into
    some number of parts with so many local sums.
    """

    module: ir.Module
    whole: Graph
    statistics: str = "batch"
    parts: int = 0
    chooses: bool = False
    hosted: int | None = None
    refused: dict[tuple[int, int], PassError] = field(default_factory=dict)

    @property
    def fewest(self) -> int:
        """As many as were asked for, else 1."""
        return 1 if self.parts and self.parts == self.own else max(1, self.parts)

    @property
    def plain(self) -> int:
        """The way in which the step does not even compute again what it has its backward pass do; 0 if that is none."""
        return 1 if self._undone else 0

    @cached_property
    def ways(self) -> tuple[Way, ...]:
        """What can be computed again: the step as it is, the plain one, then from least to most of either."""
        if not self.chooses:
            return (KEEP,)
        plain = None
        if self._undone:
            code, done = self._undone
            plain = _read(code), done.graph, done
        return all_ways(self._known, (self.module, self.whole), plain)

    def way(self, number: int) -> Way:
        """One of them; the first and the plain one are known before the others."""
        if number > self.plain:
            return self.ways[number]
        return self._known[number]

    @cached_property
    def _known(self) -> tuple[Way, ...]:
        """The step as it is, and the plain one."""
        first = as_it_is(self.whole)
        return (first, *undone_ways([as_it_is(self._undone[1].graph)], self._undone[1])) if self._undone else (first,)

    @cached_property
    def _undone(self) -> tuple[bytes, Undone] | None:
        """The step without what its backward pass has to compute again; None where that is nothing."""
        if not self.chooses or not may_undo(self.whole):
            return None
        copy = self._copy()
        done = undo(copy, self.whole)
        return (to_bytecode(copy), done) if done.changed else None

    @cached_property
    def _plain_graph(self) -> Graph:
        """The program of the plain step."""
        assert self._undone is not None
        code, done = self._undone
        copy = _read(code)
        return import_graph(copy) if order_products(copy) else done.graph

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Into how many more parts the batch divides, ascending; none of a step with a loop of its own."""
        if self.parts:
            return ()
        return tuple(n for n in range(2, self.examples + 1) if self.examples % n == 0)

    @cached_property
    def examples(self) -> int:
        """How many there are to be cut into parts; 0 of a step without a batch, or with a loop of its own."""
        try:
            batch = count_examples(functions.find(self.module, "main"))
        except PassError:
            return 0
        return 0 if self.whole.microbatch_loop >= 0 or self.own else batch

    @cached_property
    def own(self) -> int:
        """The micro-batches that the step has a loop over itself; 0 for none."""
        found = own_loop(self.module, self.whole)
        return found.trips if isinstance(found, Accumulation) else 0

    def graph(self, parts: int, way: int = 0, sums: int = 1) -> Graph | None:
        """The program as a loop over so many parts, with what a way computes again, and so many local sums.

        Of 1, and of as many as the step has itself, it is not cut. None if it cannot be, for the reason in `refused`.
        """
        whole = parts == 1 or parts == self.own
        if whole and self.hosted is None:
            if not way:
                return self.whole
            if self._undone and way == self.plain:
                return self._plain_graph
        alike = [parts for parts, tried in self.refused if (tried > 1) == (sums > 1)]
        if not whole and ((parts, sums) in self.refused or len(alike) >= _ATTEMPTS):
            return None
        copy = self._copy()
        known: Graph | None = self.whole
        if way:
            told = self.way(way).told
            if told.undoes and self._undone:
                copy, known = _read(self._undone[0]), self._undone[1].graph
            if told.policy != KEEP.told.policy:
                recompute(copy, told.policy, told.count)
                known = None
            if order_products(copy):
                known = None
        if not whole and not self._cut(copy, known, parts, sums):
            return None
        if self.hosted is not None:
            offload(copy, self.hosted)
        return import_graph(copy)

    def _cut(self, copy: ir.Module, known: Graph | None, parts: int, sums: int) -> bool:
        """Makes a loop over parts of a module, of which this is the program; else `refused` says why."""
        try:
            if self.own:
                adopt(copy)
                raise own_loop_error(copy, self.own, parts)
            split_microbatch(copy, parts, self.statistics, known, sums)
        except PassError as error:
            self.refused[parts, sums] = error
            return False
        accumulate_in_loops(copy)
        return True

    def _copy(self) -> ir.Module:
        return _read(self._bytecode)

    @cached_property
    def _bytecode(self) -> bytes:
        return to_bytecode(self.module)


def _read(code: bytes) -> ir.Module:
    return parse_bytes(code, make_context())
