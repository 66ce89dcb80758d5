"""Where `rhino.multicast` stands in a module in fragments: on transfers, on arguments and on results of @main.

Owns finding, checking and writing it there, by edge. Knows nothing of what it says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.dialect.attributes import RhinoMulticast
from rhino.dialect.base import Scene
from rhino.dialect.multicast import Where
from rhino.ir.diagnostics import PassError
from rhino.ir.pipeline.program import transfer_ops
from rhino.pipeline.program import Edge, PipelineEdge, PipelineProgram, SignatureEdge

REMEDY = "rhino-lower-transfers plans it"
_PLACES = {"argument": "argument", "results": "result"}
_NAME = RhinoMulticast.name


class Multicasts:
    """The attributes of a module. Those of arguments and results are written back by `write`."""

    def __init__(self, module: ir.Module, program: PipelineProgram) -> None:
        main = functions.find(module, "main")
        assert main is not None  # the program was read from it
        self._main = main
        self._ops = transfer_ops(module)
        self._axes = {mesh.name: mesh.axes for mesh in program.meshes}
        self._placement = {mesh.name: mesh.devices for mesh in program.meshes}
        kind = main.attributes["function_type"].value
        self._types = {"argument": list(kind.inputs), "result": list(kind.results)}
        self._signature = {
            "argument": functions.argument_attributes(main),
            "result": functions.result_attributes(main),
        }

    def where(self, edge: Edge) -> list[Where]:
        """The places of an edge's parts, for errors."""
        if isinstance(edge, PipelineEdge):
            return [self._ops[part] for part in edge.parts]
        return [self._location(_PLACES[edge.of], part) for part in edge.parts]

    def checked(self, edge: Edge) -> list[Any]:
        """The data of an edge's parts, None without it, after the verifier. Raises PassError at what it refuses."""
        found = []
        for where, part in zip(self.where(edge), edge.parts, strict=True):
            if isinstance(edge, PipelineEdge):
                op, scene = self._ops[part], Scene(self._ops[part], axes=self._axes, placement=self._placement)
                attribute = op.attributes.get(_NAME)
            else:
                place = _PLACES[edge.of]
                scene = Scene(
                    self._main, self._types[place][part], axes=self._axes, placement=self._placement,
                    place=place, position=part,
                )  # fmt: skip
                attribute = self._signature[place][part].get(_NAME)
            for problem in RhinoMulticast.problems(attribute, scene) if attribute is not None else ():
                raise PassError(where, problem, [REMEDY])
            found.append(None if attribute is None else RhinoMulticast.from_attr(attribute))
        return found

    def check_meant(self, edges: Iterable[Edge]) -> None:
        """PassError at an argument or result with the attribute that is on none of the edges."""
        meant = {(_PLACES[edge.of], part) for edge in edges if isinstance(edge, SignatureEdge) for part in edge.parts}
        for place, given in self._signature.items():
            for part, attributes in enumerate(given):
                if _NAME in attributes and (place, part) not in meant:
                    raise PassError(
                        self._location(place, part), f"{_NAME}: {place} {part} is not sent", ["drop the attribute"]
                    )

    def attach(self, edge: Edge, data: Sequence[Any]) -> None:
        """Give each part of an edge its data."""
        for part, each in zip(edge.parts, data, strict=True):
            if isinstance(edge, PipelineEdge):
                RhinoMulticast.attach(self._ops[part], each)
            else:
                attribute = RhinoMulticast.to_attr(each, self._main.context)
                self._signature[_PLACES[edge.of]][part][_NAME] = attribute

    def clear(self, edges: Iterable[Edge], names: Collection[str] | None) -> None:
        """Drop what arguments and results say of these edges, by name; of all by default."""
        for edge in edges:
            if isinstance(edge, SignatureEdge) and (names is None or edge.name in names):
                for part in edge.parts:
                    self._signature[_PLACES[edge.of]][part].pop(_NAME, None)

    def write(self) -> None:
        """Give arguments and results their attributes."""
        functions.set_argument_attributes(self._main, self._signature["argument"])
        functions.set_result_attributes(self._main, self._signature["result"])

    def _location(self, place: str, part: int) -> ir.Location:
        if place == "result":
            return self._main.location
        location: ir.Location = self._main.regions[0].blocks[0].arguments[part].location
        return location
