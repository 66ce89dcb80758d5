"""@main as a flat list of operations over numbered values, for rhino-expose-strided-dims.

Owns the walk, linear in operations, and what needs no dimension numbers: which values have all dimensions in common
(elementwise operations, loop carries, branches), and which are made of a parameter alone, so that a contraction with
them is a layer of the model. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.program.disjoint import DisjointSets
from rhino.program.elementwise import ELEMENTWISE
from rhino.program.operations import BRANCHES, PLACEMENT

# Operations that move or cut elements: of a parameter, they still give a parameter.
_MOVES = frozenset(
    f"stablehlo.{name}" for name in "reshape transpose slice dynamic_slice optimization_barrier concatenate".split()
)
# All operands of equal shape and all results have their dimensions in common, but for the one dimension sorted along.
_SAME_SHAPE = frozenset({"stablehlo.sort", "stablehlo.reverse"})
LOOP = "stablehlo.while"
BARRIER = "stablehlo.optimization_barrier"
RETURN = "func.return"
# Their regions combine scalars and read no value from outside.
_COMBINERS = frozenset(
    f"stablehlo.{name}" for name in "reduce scatter sort reduce_window select_and_scatter all_reduce map".split()
)


@dataclass(slots=True)
class OpRecord:
    """One operation, by number of its operands and results.

    `elementwise`: operands and results of one shape correspond dimension by dimension, and nothing else does.
    `inner`: for loops, the numbers of all block arguments; for operations whose body is not looked into, the outside
    values that it reads.
    """

    op: Any
    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    inner: tuple[int, ...] = ()
    elementwise: bool = False


@dataclass(slots=True)
class StridedProgram:
    """The walk's outcome. `values` are handles into the module, `shapes` theirs (rank 0 for anything but tensors).

    `groups` joins values whose dimensions correspond one to one. `weights` are the values made of a parameter.
    The first `arguments` values are the arguments of @main; `outputs` are those it returns.
    `dynamic`: whether a shape is not static, and nothing else here to be relied on.
    """

    main: Any
    values: list[Any] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    records: list[OpRecord] = field(default_factory=list)
    groups: DisjointSets = field(default_factory=DisjointSets)
    weights: set[int] = field(default_factory=set)
    arguments: int = 0
    outputs: tuple[int, ...] = ()
    dynamic: bool = False


def read_program(main: Any, parameters: Sequence[bool], aliases: Mapping[int, int]) -> StridedProgram:
    """Walks @main.

    Args:
      main: the function, calls inlined.
      parameters: per argument, whether it is a parameter of the model.
      aliases: by argument, the result that takes its buffer.
    """
    program = StridedProgram(main)
    _StridedReader(program).run(parameters, aliases)
    return program


class _StridedReader:
    """State of the walk."""

    def __init__(self, program: StridedProgram) -> None:
        self.program = program
        self.ids: dict[Any, int] = {}
        self.types: dict[Any, tuple[int, ...]] = {}

    def run(self, parameters: Sequence[bool], aliases: Mapping[int, int]) -> None:
        program = self.program
        block = program.main.regions[0].blocks[0]
        arguments = [self.value(argument) for argument in block.arguments]
        program.arguments = len(arguments)
        program.weights.update(v for v, parameter in zip(arguments, parameters, strict=True) if parameter)
        self.block(block)
        program.outputs = program.records[-1].operands
        for i, output in aliases.items():
            self.join(i, program.outputs[output])

    def value(self, value: Any) -> int:
        kind = value.type
        shape = self.types.get(kind)
        if shape is None:
            shape = self.types[kind] = self.shape(kind)
        program = self.program
        index = len(program.values)
        program.values.append(value)
        program.shapes.append(shape)
        program.groups.add()
        self.ids[value] = index
        return index

    def shape(self, kind: Any) -> tuple[int, ...]:
        if not isinstance(kind, ir.RankedTensorType):
            return ()
        if not kind.has_static_shape:
            self.program.dynamic = True
            return ()
        return tuple(kind.shape)

    def join(self, a: int, b: int) -> None:
        shapes = self.program.shapes
        if shapes[a] and shapes[a] == shapes[b]:
            self.program.groups.join(a, b)

    def block(self, block: Any) -> tuple[int, ...]:
        """Walk a block; returns what its terminator passes on, of @main's own nothing."""
        ids = self.ids
        for view in block.operations:
            op = view.operation
            name: str = op.name
            operands = tuple([ids[v] for v in op.operands])
            if name == "stablehlo.return":
                return operands
            results = tuple([self.value(r) for r in op.results])
            record = OpRecord(op, name, operands, results)
            self.program.records.append(record)
            self.op(record)
        return ()

    def op(self, record: OpRecord) -> None:
        name = record.name
        weights = self.program.weights
        operands, results = record.operands, record.results
        if name in ELEMENTWISE or self.is_elementwise(record):
            record.elementwise = True
            self.same(record)
            if not weights.isdisjoint(operands):
                weights.update(results)
        elif name == LOOP:
            self.loop(record)
        elif name in BRANCHES:
            self.branches(record)
        elif name == BARRIER:
            record.elementwise = True
            for operand, result in zip(operands, results, strict=True):
                self.join(operand, result)
                if operand in weights:
                    weights.add(result)
        else:
            if name in _SAME_SHAPE:
                self.same(record)
            if name in _MOVES and not weights.isdisjoint(operands):
                weights.update(results)
            if len(record.op.regions) and name not in _COMBINERS:
                record.inner = self.captured(record.op)

    def is_elementwise(self, record: OpRecord) -> bool:
        """Operations of chlo (erf and the like) and markers, where every tensor has one shape."""
        if record.name == "stablehlo.custom_call":
            if record.op.attributes["call_target_name"].value != PLACEMENT:
                return False
        elif record.name == "stablehlo.bitcast_convert":
            pass
        elif not record.name.startswith("chlo.") or len(record.results) != 1 or not record.operands:
            return False
        shapes = self.program.shapes
        return all(shapes[v] == shapes[record.results[0]] for v in record.operands)

    def same(self, record: OpRecord) -> None:
        first = record.results[0]
        for v in (*record.operands, *record.results[1:]):
            self.join(first, v)

    def loop(self, record: OpRecord) -> None:
        cond, body = (region.blocks[0] for region in record.op.regions)
        weights = self.program.weights
        per_block = [[self.value(a) for a in block.arguments] for block in (cond, body)]
        record.inner = (*per_block[0], *per_block[1])
        for ties in zip(record.operands, *per_block, record.results, strict=True):
            for v in ties[1:]:
                self.join(ties[0], v)
                if ties[0] in weights:
                    weights.add(v)
        self.block(cond)
        for result, passed in zip(record.results, self.block(body), strict=True):
            self.join(result, passed)

    def branches(self, record: OpRecord) -> None:
        for region in record.op.regions:
            for result, passed in zip(record.results, self.block(region.blocks[0]), strict=True):
                self.join(result, passed)

    def captured(self, op: Any) -> tuple[int, ...]:
        """The outside values read in the body of an operation that is not looked into."""
        found = [self.ids.get(v, -1) for inner in functions.walk(op) for v in inner.operands]
        return tuple(dict.fromkeys(v for v in found if v >= 0))
