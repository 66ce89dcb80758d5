"""A step that stays one program, as loops over parts of its batch, for the search that chooses their number.

Owns the copies that are cut so. Chooses nothing, and leaves the module as it is.
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
from rhino.program.data import Graph

# After so many numbers of parts that were refused, others are, too.
_ATTEMPTS = 5


@dataclass
class OneProgram:
    """A normalised module and its program, `whole`; cut into parts when asked for.

    `statistics`: as of rhino-split-microbatch. `refused` says why it could not be cut into some number of parts.
    """

    module: ir.Module
    whole: Graph
    statistics: str = "batch"
    refused: dict[int, PassError] = field(default_factory=dict)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Into how many parts the batch divides, ascending, without 1; none of a step with a loop of its own."""
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

    def graph(self, parts: int) -> Graph | None:
        """The program as a loop over so many parts; None if it cannot be cut so, for the reason in `refused`.

        Of 1, and of as many as the step has itself, it is `whole`.
        """
        if parts == 1 or parts == self.own:  # the second is only known from a copy
            return self.whole
        if len(self.refused) >= _ATTEMPTS:
            return None
        copy = self._copy()
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
