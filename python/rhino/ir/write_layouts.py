"""A solution written into a module: the shardings of arguments and results, and what converts values between them.

Owns what a plan looks like in IR; `rhino.ir.read_layouts` reads it back. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from rhino.dialect import functions
from rhino.dialect import sdy as sdy_attributes
from rhino.dialect.attributes import RhinoConstraint
from rhino.ir.import_graph import number_program
from rhino.ir.kernel_calls import kernel_of, write_kernel
from rhino.ir.local_sums import grouping
from rhino.ir.meshes import MESH, put_away
from rhino.ir.read_layouts import laying_out
from rhino.ir.spread import spread
from rhino.program.data import Dims, Graph
from rhino.program.operations import CONSTRAINTS
from rhino.sharding import Solution


def annotate(module: ir.Module, graph: Graph, solution: Solution) -> None:
    """Writes a solution into the module its graph was imported from: the mesh unless it is there, and all shardings."""
    main = functions.find(module, "main")
    assert main is not None
    if MESH not in sdy_attributes.mesh_axes(module):
        sdy_attributes.add_mesh(module, MESH, solution.mesh)
    writer = Writer(module, main, graph, solution)
    writer.boundary()
    writer.operations()
    put_away(module, MESH)


class Writer:
    """One solution written into one module, over a mesh that is there; or into those of its operations that `mine` has.

    The module stays as the graph has it until one of the writers of a module writes operations.
    """

    def __init__(
        self,
        module: ir.Module,
        main: ir.Operation,
        graph: Graph,
        solution: Solution,
        mesh: str = MESH,
        mine: Callable[[int], bool] = lambda op: True,
    ) -> None:
        self.module, self.main, self.graph, self.solution = module, main, graph, solution
        self.mesh, self.mine = mesh, mine
        self.values, self.ops = number_program(main)
        self.attributes: dict[tuple[tuple[str, ...], ...], Any] = {}
        self.per_value: dict[tuple[Any, ...], Any] = {}

    def operations(self) -> None:
        """Write the shardings of results, and what changes the layouts of values between operations."""
        left = self.left
        for op, record in zip(self.ops, self.graph.ops, strict=True):
            if record.manual is not None:
                if self.mine(record.index):
                    factors = self.solution.factors(record.index)
                    spread(op, record, self.graph.axes, self.mesh, self.solution.mesh, factors)
                continue
            dims = [left[v][0] if v in left else self.solution.dims(v) for v in record.results]
            if record.name in CONSTRAINTS:
                if self.mine(record.index):
                    whole = ((),) * len(self.graph.values[record.results[0]].shape)
                    op.attributes["sharding"] = self._sharding(dims[0] or whole)
                    RhinoConstraint.attach(op, "given")
                continue
            if any(dims) and self.mine(record.index):
                given = [
                    self._open(v) if d is None else self._sharding(d) for v, d in zip(record.results, dims, strict=True)
                ]
                op.attributes[sdy_attributes.SHARDING] = self._per_value(tuple(given))
            if record.kernel is not None and record.rule is not None and self.mine(record.index):
                split = tuple(map(tuple, self.solution.factors(record.index)))
                write_kernel(op, replace(kernel_of(op), split=split))
        for v, stops in left.items():
            value = self.values[v]
            with self.module.context, value.owner.location, ir.InsertionPoint.after(value.owner):
                first = sdy.ShardingConstraintOp(value, self._sharding(stops[1]))
                kept = self._through(first.result, stops[2:])
            value.replace_all_uses_except(kept, first.operation)
            self.values[v] = kept
        copied: set[ir.Value] = set()
        for copy, stops in self.solution.copies():
            changed: dict[tuple[ir.Value, ir.Block], ir.Value] = {}  # another writer may have changed what is read
            for at, slot in copy.readers:
                if self.mine(at):
                    reader, slot = self._reader(at, slot)
                    given = reader.operands[slot]
                    # A copy made for a reader before this one in its block, or in one around it, dominates this one.
                    before = (changed.get((given, block)) for block in _blocks_around(reader))
                    made = next((value for value in before if value is not None), None)
                    if made is None:
                        with self.module.context, reader.location, ir.InsertionPoint(reader):
                            chain = self._chain(given, stops)
                        made = changed[given, reader.block] = chain[-1]
                        copied.add(chain[1])
                    reader.operands[slot] = made
        copied.update(self._returns())
        for conversion in laying_out(self.main.regions[0].blocks[0]):
            if conversion.results[0] in copied:
                RhinoConstraint.attach(conversion, "copy")
        for at, slot in self.solution.loose:
            if self.mine(at):
                (reader, slot), read = self._reader(at, slot), self.graph.ops[at].operands[slot]
                whole = ((),) * len(self.graph.values[read].shape)
                with self.module.context, reader.location, ir.InsertionPoint(reader):
                    reader.operands[slot] = self._through(reader.operands[slot], [whole])

    def _reader(self, at: int, slot: int) -> tuple[ir.Operation, int]:
        """The operation, and its operand, where an op of the graph reads: before it groups examples, if it does."""
        reader = self.ops[at]
        grouped = grouping(reader, slot)
        return (reader, slot) if grouped is None else (grouped[0], 0)

    def _returns(self) -> Iterator[ir.Value]:
        """Writes the ways to the layouts of results, but for the last steps, which those of @main's results say.

        Returns: where each begins.
        """
        block = self.main.regions[0].blocks[0]
        end = block.operations[len(block.operations) - 1].operation
        for v, stops in self.solution.returns().items():
            if stops[1:] and self.mine(self.graph.values[v].producer):
                slot = self.graph.outputs.index(v)
                with self.module.context, end.location, ir.InsertionPoint(end):
                    chain = self._chain(end.operands[slot], stops[:-1])
                end.operands[slot] = chain[-1]
                yield chain[1]

    @cached_property
    def left(self) -> dict[int, tuple[Dims, ...]]:
        """As `Solution.outputs`, of the operations it writes."""
        return {v: stops for v, stops in self.solution.outputs().items() if self.mine(self.graph.values[v].producer)}

    def _through(self, value: ir.Value, stops: Sequence[Dims]) -> ir.Value:
        return self._chain(value, stops)[-1]

    def _chain(self, value: ir.Value, stops: Sequence[Dims]) -> list[ir.Value]:
        """A value, and it led through layouts, one constraint each, at the current insertion point."""
        found = [value]
        for dims in stops:
            found.append(sdy.ShardingConstraintOp(found[-1], self._sharding(dims)).result)
        return found

    def boundary(self) -> None:
        """Write the shardings of arguments and results of @main."""
        arguments = functions.argument_attributes(self.main)
        for argument, attributes in zip(self.graph.arguments, arguments, strict=True):
            attributes[sdy_attributes.SHARDING] = self._of(argument.value)
        functions.set_argument_attributes(self.main, arguments)
        results = functions.result_attributes(self.main)
        for v, attributes in zip(self.graph.outputs, results, strict=True):
            attributes[sdy_attributes.SHARDING] = self._of(self.solution.problem.returned.get(v, v))
        functions.set_result_attributes(self.main, results)

    def _of(self, v: int) -> Any:
        rank = len(self.graph.values[v].shape)
        return self._sharding(self.solution.dims(v) or ((),) * rank)

    def _open(self, v: int) -> Any:
        rank = len(self.graph.values[v].shape)
        return sdy_attributes.tensor_sharding(self.module.context, self.mesh, ((),) * rank, open=True)

    def _per_value(self, given: tuple[Any, ...]) -> Any:
        found = self.per_value.get(given)
        if found is None:
            found = self.per_value[given] = sdy_attributes.per_value(given, self.module.context)
        return found

    def _sharding(self, dims: tuple[tuple[str, ...], ...]) -> Any:
        found = self.attributes.get(dims)
        if found is None:
            found = self.attributes[dims] = sdy_attributes.tensor_sharding(self.module.context, self.mesh, dims)
        return found


def _blocks_around(op: ir.Operation) -> Iterator[ir.Block]:
    """The block of an operation and those it is nested in, up to the body of its function."""
    while op.name != "func.func":
        yield op.block
        op = op.parent.operation
