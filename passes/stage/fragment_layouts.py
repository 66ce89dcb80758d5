"""How values are sharded between fragments: read from what the program says of them.

Owns that a value has one layout wherever it goes, of a kind that the type of a mesh tensor can have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxlib.mlir import ir

from rhino.dialect import functions, sdy
from rhino.passes.stage.staged_program import CONSTRAINTS, Input, Source, StagedProgram

Dims = tuple[tuple[str, ...], ...]


class Layouts:
    """The layouts of one program; None everywhere without a mesh."""

    def __init__(self, program: StagedProgram, axes: Mapping[str, int]) -> None:
        self.program, self.axes = program, axes
        self.known: dict[Source, Dims | None] = {program.loop.counter: None}
        self.arguments = [_given(attributes) for attributes in functions.argument_attributes(program.main)]
        self.results = [_given(attributes) for attributes in functions.result_attributes(program.main)]
        # A value returned as it is has the layout of the result; one that the loop carries, that of the loop.
        self.returned = {
            source: self.results[i]
            for i, pieces in enumerate(program.outputs)
            for source, _ in pieces
            if program.loop.carry_of(source) is None
        }

    def of(self, source: Source) -> Dims | None:
        """The layout of a value."""
        if source not in self.known:
            self.known[source] = self._whole(self._read(source), self._shape(source)) if self.axes else None
        return self.known[source]

    def of_result(self, index: int, source: Source) -> Dims | None:
        """The layout in which a value is returned as a result, or as rows of it."""
        return self._whole(self.results[index], self._shape(source)) if self.axes else None

    def _read(self, source: Source) -> Dims | None:
        if isinstance(source, Input):
            return self.arguments[source.index]
        if source in self.returned:
            return self.returned[source]
        carry = self.program.loop.carry_of(source)
        if carry is not None:
            op, position = self.program.loop.op, carry + 1
        else:
            node = self.program.node_of(source)
            assert node is not None
            op, position = node.op, list(node.op.results).index(source)
        # What a constraint asks for is not in the place where other operations have it.
        sharding = op.attributes["sharding"] if op.name in CONSTRAINTS else sdy.results_of(op)[position]
        return None if sharding is None else sdy.dims_of(sharding)

    def _shape(self, source: Source) -> tuple[int, ...]:
        if not isinstance(source, Input):
            return tuple(ir.ShapedType(source.type).shape)
        shape = ir.ShapedType(self.program.arguments[source.index].type).shape
        return (source.stop - source.start, *shape[1:]) if source.slice else tuple(shape)

    def _whole(self, dims: Dims | None, shape: tuple[int, ...]) -> Dims:
        """The layout without the axes that would cut a dimension into unequal shards."""
        kept = []
        for size, axes in zip(shape, dims or ((),) * len(shape), strict=True):
            parts = 1
            for axis in axes:
                parts *= sdy.axis_size(axis, self.axes)
            kept.append(axes if size % parts == 0 else ())
        return tuple(kept)


def _given(attributes: Mapping[str, Any]) -> Dims | None:
    return sdy.dims_of(attributes[sdy.SHARDING]) if sdy.SHARDING in attributes else None
