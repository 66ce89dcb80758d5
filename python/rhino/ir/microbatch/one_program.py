"""A step that stays one program, as loops over parts of its batch, for the search that chooses their number.

Owns the copies that are cut so. Chooses nothing, and leaves the module as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.dialect.context import make_context, parse_bytes, to_bytecode
from rhino.ir.diagnostics import PassError
from rhino.ir.import_graph import import_graph
from rhino.ir.microbatch.accumulate import accumulate_in_loops
from rhino.ir.microbatch.adopt import adopt
from rhino.ir.microbatch.programs import count_examples
from rhino.ir.microbatch.split import split_microbatch
from rhino.program.data import Graph

# Of the numbers of parts that the batch divides into, the coarsest are left out after so many were refused.
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
    _bytecode: bytes = b""
    _counts: tuple[int, ...] | None = None

    @property
    def counts(self) -> tuple[int, ...]:
        """Into how many parts the batch divides, ascending, without 1; none of a step with a loop of its own."""
        if self._counts is None:
            self._counts = self._divisors()
        return self._counts

    def graph(self, parts: int) -> Graph | None:
        """The program as a loop over so many parts; None if it cannot be cut so, for the reason in `refused`."""
        if parts == 1:
            return self.whole
        if len(self.refused) >= _ATTEMPTS:
            return None
        copy = self._copy()
        try:
            split_microbatch(copy, parts, self.statistics)
        except PassError as error:
            self.refused[parts] = error
            return None
        accumulate_in_loops(copy)
        return import_graph(copy)

    def _copy(self) -> ir.Module:
        self._bytecode = self._bytecode or to_bytecode(self.module)
        return parse_bytes(self._bytecode, make_context())

    def _divisors(self) -> tuple[int, ...]:
        main = functions.find(self.module, "main")
        try:
            batch = count_examples(main)
        except PassError:
            return ()
        if self.whole.microbatch_loop >= 0 or isinstance(adopt(self._copy()), int):
            return ()
        return tuple(n for n in range(2, batch + 1) if batch % n == 0)
