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
from rhino.ir.microbatch.adopt import adopt
from rhino.ir.microbatch.programs import count_examples, own_loop_error
from rhino.ir.microbatch.split import split_microbatch
from rhino.ir.recompute.step import recompute, variants
from rhino.program.data import Graph
from rhino.program.recomputation import KEEP, Way

# After so many numbers of parts that were refused, others are, too.
_ATTEMPTS = 5


@dataclass
class OneProgram:
    """A normalised module and its program, `whole`; cut into parts, and made to compute again, when asked for.

    `statistics`: as of rhino-split-microbatch. `parts`: those asked for, 0 for any number. `adds`: whether there are
    ways to recompute. `refused` says why it could not be cut into some number of parts.
    """

    module: ir.Module
    whole: Graph
    statistics: str = "batch"
    parts: int = 0
    adds: bool = False
    refused: dict[int, PassError] = field(default_factory=dict)

    @property
    def fewest(self) -> int:
        """As many as were asked for, else 1."""
        return 1 if self.parts and self.parts == self.own else max(1, self.parts)

    @cached_property
    def ways(self) -> tuple[Way, ...]:
        """What can be computed again, from least to most, after the step as it is."""
        return tuple(variants(self.module, self.whole)) if self.adds else (KEEP,)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Into how many more parts the batch divides, ascending; none of a step with a loop of its own."""
        if self.parts:
            return ()
        try:
            batch = count_examples(functions.find(self.module, "main"))
        except PassError:
            return ()
        if self.whole.microbatch_loop >= 0 or self.own:
            return ()
        return tuple(n for n in range(2, batch + 1) if batch % n == 0)

    @cached_property
    def own(self) -> int:
        """The micro-batches that the step has a loop over itself; 0 for none."""
        found = adopt(self._copy())
        return found if isinstance(found, int) else 0

    def graph(self, parts: int, way: int = 0) -> Graph | None:
        """The program as a loop over so many parts, with what a way computes again.

        Of 1, and of as many as the step has itself, it is not cut. None if it cannot be, for the reason in `refused`.
        """
        whole = parts == 1 or parts == self.own  # the second is only known from a copy
        if whole and not way:
            return self.whole
        if not whole and (parts in self.refused or len(self.refused) >= _ATTEMPTS):
            return None
        copy = self._copy()
        if way:
            recompute(copy, self.ways[way].told.policy, self.ways[way].told.count)
        if whole:
            return import_graph(copy)
        try:
            if self.own:
                adopt(copy)
                raise own_loop_error(copy, self.own, parts)
            split_microbatch(copy, parts, self.statistics)
        except PassError as error:
            self.refused[parts] = error
            return None
        accumulate_in_loops(copy)
        return import_graph(copy)

    def _copy(self) -> ir.Module:
        return parse_bytes(self._bytecode, make_context())

    @cached_property
    def _bytecode(self) -> bytes:
        return to_bytecode(self.module)
