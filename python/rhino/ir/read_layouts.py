"""The layouts that a planned module carries, apart from the program: what `annotate` wrote, read back.

Owns telling conversions that a plan added from constraints of the user's. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from jaxlib.mlir import ir

from rhino.dialect import functions, sdy
from rhino.dialect.attributes import RhinoConstraint
from rhino.dialect.context import copied
from rhino.ir.import_graph import import_graph, number_program
from rhino.ir.local_sums import grouping
from rhino.program.data import Dims, Graph
from rhino.program.operations import CONSTRAINTS
from rhino.sharding.replay import UnreadableError, Written


def read_layouts(module: ir.Module) -> tuple[Graph, Written]:
    """The program of a planned module as the search saw it, and the layouts the module gives its values.

    Raises:
      UnreadableError: something but an operation reads a converted copy, or a plan has changed what manual
        computations do inside.
    """
    bare = copied(module)
    main = functions.find(bare, "main")
    if main is None:
        raise UnreadableError("module has no function @main")
    layouts = _Layouts(main)
    return import_graph(bare), layouts.written


def is_conversion(op: ir.Operation) -> bool:
    """Whether an operation of a planned module is a conversion that the plan added."""
    return op.name in CONSTRAINTS and RhinoConstraint.of(op) != "given"


def laying_out(block: ir.Block) -> Iterator[ir.Operation]:
    """Conversions, in a block and those in it, that come at once after an operation and alone read its result.

    They say how the result is kept. One that does so for a reader has to be marked.
    """
    own: set[ir.Value] = set()
    for view in block.operations:
        op = view.operation
        if not is_conversion(op):
            own = set(op.results)
            for region in op.regions:
                for inner in region.blocks:
                    yield from laying_out(inner)
        elif (
            RhinoConstraint.name not in op.attributes and op.operands[0] in own and len(list(op.operands[0].uses)) == 1
        ):
            own.add(op.results[0])
            yield op


class _Layouts:
    """One walk over a function, which is left without its layouts."""

    def __init__(self, main: ir.Operation) -> None:
        values, ops = number_program(main)
        if any(op.name == "sdy.manual_computation" for op in ops):
            raise UnreadableError("it has manual computations")
        self.conversions = [op for op in ops if is_conversion(op)]
        converted = {op.results[0] for op in self.conversions}
        self.values = [v for v in values if v not in converted]
        self.ops = [op for op in ops if not is_conversion(op)]
        self.numbers = {v: i for i, v in enumerate(self.values)}
        # Per conversion's result, the value it is of; that of a copy, and its layout.
        self.roots: dict[ir.Value, int] = {}
        self.copies: dict[ir.Value, Dims] = {}
        kept, made = dict(self._boundary(main)), dict(self._results())
        kept = {**made, **kept, **self._follow(main.regions[0].blocks[0])}
        self.written = Written(kept, made, dict(self._reads()), tuple(self._returned(main)))
        self._strip()

    def _boundary(self, main: ir.Operation) -> Iterator[tuple[int, Dims]]:
        arguments = functions.argument_attributes(main)
        for argument, attributes in zip(main.regions[0].blocks[0].arguments, arguments, strict=True):
            if sdy.SHARDING in attributes:
                yield self.numbers[argument], sdy.dims_of(attributes.pop(sdy.SHARDING))
        functions.set_argument_attributes(main, arguments)

    def _results(self) -> Iterator[tuple[int, Dims]]:
        for op in self.ops:
            if op.name in CONSTRAINTS:
                yield self.numbers[op.results[0]], sdy.dims_of(op.attributes["sharding"])
            elif sdy.SHARDING in op.attributes:
                for v, sharding in zip(op.results, sdy.results_of(op), strict=True):
                    if sharding is not None and all(sdy.closed_dims(sharding)):
                        yield self.numbers[v], sdy.dims_of(sharding)

    def _follow(self, block: ir.Block) -> dict[int, Dims]:
        """The layouts to which conversions lead what an operation makes; all other conversions are copies."""
        laid = {op.results[0] for op in laying_out(block)}
        kept: dict[int, Dims] = {}
        for op in self.conversions:
            (given,), (result,) = op.operands, op.results
            self.roots[result] = self.roots[given] if given in self.roots else self.numbers[given]
            dims = sdy.dims_of(op.attributes["sharding"])
            if result in laid:
                kept[self.roots[result]] = dims
            else:
                self.copies[result] = dims
        return kept

    def _reads(self) -> Iterator[tuple[tuple[int, int], Dims]]:
        for number, op in enumerate(self.ops):
            for slot, v in enumerate(op.operands):
                grouped = grouping(op, slot)
                read = v if grouped is None else grouped[0].operands[0]
                if read in self.copies:
                    yield (number, slot), self.copies[read]

    def _returned(self, main: ir.Operation) -> Iterator[tuple[int, Dims]]:
        block = main.regions[0].blocks[0]
        end = block.operations[len(block.operations) - 1].operation
        results = functions.result_attributes(main)
        for v, attributes in zip(end.operands, results, strict=True):
            if sdy.SHARDING in attributes:
                yield self.roots[v] if v in self.roots else self.numbers[v], sdy.dims_of(attributes.pop(sdy.SHARDING))
        functions.set_result_attributes(main, results)

    def _strip(self) -> None:
        for op in reversed(self.conversions):
            for use in op.results[0].uses if op.results[0] in self.copies else ():
                # What @main returns goes on to the layout of its result.
                if use.owner.name == "stablehlo.return":
                    raise UnreadableError("what a block returns is a converted copy")
            op.results[0].replace_all_uses_with(op.operands[0])
        for op in reversed(self.conversions):
            op.erase()
