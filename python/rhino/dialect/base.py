"""What all rhino attributes share: conversion to and from plain data, attaching, reading, and checking at a place.

Owns the base class. Knows no attribute; those are in `rhino.dialect.attributes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from jaxlib.mlir import ir

from rhino.dialect.schema import Schema, from_attr, to_attr


@dataclass(frozen=True, slots=True)
class Scene:
    """What a verifier knows of the place of an attribute: the meshes of the module, and its cluster's device count.

    `type` is the type of the argument or result that carries the attribute, `op` the operation. `axes` are those of the
    meshes in the function's topology, `placement` the cluster's devices of meshes, where the module gives them.
    """

    op: ir.Operation
    type: ir.Type | None = None
    mesh_devices: Mapping[str, int] = field(default_factory=dict)
    cluster_devices: int | None = None
    axes: Mapping[str, Sequence[tuple[str, int]]] = field(default_factory=dict)
    placement: Mapping[str, Sequence[int]] = field(default_factory=dict)


class RhinoAttribute:
    """Base of the attributes. `name` is the full name, `places` a subset of module, function, argument, result, op.

    The docstring of a subclass is its documentation, `example` a value in MLIR text.
    """

    name: ClassVar[str]
    places: ClassVar[tuple[str, ...]]
    schema: ClassVar[Schema]
    example: ClassVar[str]

    @classmethod
    def to_attr(cls, data: Any, context: ir.Context) -> ir.Attribute:
        """The attribute for plain data.

        Raises:
          ValueError: the data does not have the schema; names the path and both values.
        """
        data = cls.schema.normalize(data)
        problems = list(cls.schema.check(data, cls.name))
        if problems:
            raise ValueError("; ".join(problems))
        return to_attr(data, context)

    @classmethod
    def from_attr(cls, attribute: ir.Attribute) -> Any:
        """The plain data of the attribute, as `to_attr` took it. Raises ValueError if it does not have the schema."""
        data = from_attr(attribute)
        problems = list(cls.schema.check(data, cls.name))
        if problems:
            raise ValueError("; ".join(problems))
        return data

    @classmethod
    def of(cls, op: ir.Operation | ir.Module) -> Any | None:
        """The data attached to an operation or module, None without it. Raises ValueError if it is malformed."""
        operation = op.operation
        return cls.from_attr(operation.attributes[cls.name]) if cls.name in operation.attributes else None

    @classmethod
    def attach(cls, op: ir.Operation | ir.Module, data: Any) -> None:
        """Attach the data to an operation or module. Raises ValueError if it does not have the schema."""
        operation = op.operation
        operation.attributes[cls.name] = cls.to_attr(data, operation.context)

    @classmethod
    def problems(cls, attribute: ir.Attribute, scene: Scene) -> Iterator[str]:
        """What is wrong with the attribute at its place, one sentence per problem."""
        try:
            data = from_attr(attribute)
        except TypeError as error:
            yield f"{cls.name}: {error}"
            return
        found = list(cls.schema.check(data, cls.name))
        yield from found
        if not found:
            yield from cls.check(data, scene)

    @classmethod
    def check(cls, data: Any, scene: Scene) -> Iterator[str]:
        """What the schema cannot say; called with data that has the schema."""
        return iter(())


def shape_of(value_type: ir.Type | None) -> list[int] | None:
    """The shape of a ranked tensor type, None for any other."""
    if value_type is None or not isinstance(value_type, ir.RankedTensorType):
        return None
    return list(value_type.shape)
