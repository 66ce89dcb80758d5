"""How values are sharded between fragments: read from what the program says of them.

Owns that a value has one layout on each mesh, wherever it goes, of a kind that the type of a mesh tensor can have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxlib.mlir import ir

from rhino.dialect import functions, sdy
from rhino.dialect.attributes import RhinoLayouts
from rhino.ir.fragments.staged_program import Source, StagedProgram, StepInput
from rhino.program.operations import CONSTRAINTS

Dims = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Meshes:
    """The meshes of device groups: the name of each group's, or the one that all have. `axes` of a name may be none."""

    names: tuple[str, ...]
    axes: Mapping[str, Sequence[tuple[str, int]]]

    def name(self, group: int) -> str:
        """The symbol of a group's mesh."""
        return self.names[group if len(self.names) > 1 else 0]

    def axes_of(self, group: int) -> Sequence[tuple[str, int]]:
        """The axes of a group's mesh."""
        return self.axes[self.name(group)]

    @property
    def differ(self) -> bool:
        """Whether there are several."""
        return len(set(self.names)) > 1


class GroupLayouts:
    """The layouts of one program on each group of devices; None on a mesh without axes."""

    def __init__(self, program: StagedProgram, meshes: Meshes) -> None:
        self.program, self.meshes = program, meshes
        self.sizes = {name: dict(axes) for name, axes in meshes.axes.items()}
        self.known: dict[tuple[Source, str], Dims | None] = {}
        self.arguments = functions.argument_attributes(program.main)
        self.results = functions.result_attributes(program.main)
        # A value returned as it is has the layout of the result; one that the loop carries, that of the loop.
        self.returned = {
            source: i
            for i, pieces in enumerate(program.outputs)
            for source, _ in pieces
            if program.loop.carry_of(source) is None
        }

    def of(self, source: Source, group: int) -> Dims | None:
        """The layout of a value on a group that has it."""
        mesh = self.meshes.name(group)
        if source == self.program.loop.counter or not self.sizes[mesh]:
            return None
        if (source, mesh) not in self.known:
            self.known[source, mesh] = self._whole(self._read(source, mesh), self._shape(source), mesh)
        return self.known[source, mesh]

    def of_result(self, index: int, source: Source, group: int) -> Dims | None:
        """The layout in which a group returns a value as a result, or as rows of it."""
        mesh = self.meshes.name(group)
        if not self.sizes[mesh]:
            return None
        return self._whole(_given(self.results[index], mesh), self._shape(source), mesh)

    def _read(self, source: Source, mesh: str) -> Dims | None:
        if isinstance(source, StepInput):
            return _given(self.arguments[source.index], mesh)
        if source in self.returned:
            return _given(self.results[self.returned[source]], mesh)
        carry = self.program.loop.carry_of(source)
        if carry is not None:
            return layout_on(self.program.loop.op, carry + 1, mesh)
        node = self.program.node_of(source)
        assert node is not None
        if node.op.name not in CONSTRAINTS:
            return layout_on(node.op, list(node.op.results).index(source), mesh)
        # What a constraint asks for is not in the place where other operations have it.
        sharding = node.op.attributes["sharding"]
        if sdy.mesh_of(sharding) == mesh:
            return sdy.dims_of(sharding)
        read = self.program.source(node.reads[0])
        return None if self.program.roots(read) != (read,) else self._read(read, mesh)

    def _shape(self, source: Source) -> tuple[int, ...]:
        if not isinstance(source, StepInput):
            return tuple(ir.ShapedType(source.type).shape)
        shape = ir.ShapedType(self.program.arguments[source.index].type).shape
        return source.shape(shape)

    def _whole(self, dims: Dims | None, shape: tuple[int, ...], mesh: str) -> Dims:
        """The layout without the axes that would cut a dimension into unequal shards."""
        kept = []
        for size, axes in zip(shape, dims or ((),) * len(shape), strict=True):
            parts = 1
            for axis in axes:
                parts *= sdy.axis_size(axis, self.sizes[mesh])
            kept.append(axes if size % parts == 0 else ())
        return tuple(kept)


def layout_on(op: Any, position: int, mesh: str) -> Dims | None:
    """How an operation says that a result is split over a mesh, None where it does not."""
    sharding = sdy.results_of(op)[position]
    if sharding is not None and sdy.mesh_of(sharding) == mesh:
        return sdy.dims_of(sharding)
    return _listed(op.attributes[RhinoLayouts.name], position, mesh) if RhinoLayouts.name in op.attributes else None


def _given(attributes: Mapping[str, Any], mesh: str) -> Dims | None:
    """The same of an argument or result."""
    if sdy.SHARDING in attributes and sdy.mesh_of(attributes[sdy.SHARDING]) == mesh:
        return sdy.dims_of(attributes[sdy.SHARDING])
    return _listed(attributes[RhinoLayouts.name], 0, mesh) if RhinoLayouts.name in attributes else None


def _listed(attribute: Any, position: int, mesh: str) -> Dims | None:
    listed = RhinoLayouts.from_attr(attribute).get(mesh)
    return None if listed is None else tuple(tuple(axes) for axes in listed[position])
