"""What all rhino attributes share: conversion to and from plain data, attaching, reading, and checking at a place.

Owns the base class. Knows no attribute; those are in `rhino.dialect.attributes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, ClassVar

from jaxlib.mlir import ir

from rhino.errors import RhinoError
from rhino.schema.kinds import Schema


def to_attr(data: object, context: ir.Context) -> ir.Attribute:
    """Plain data as a builtin attribute: bool, int (i64), float (f64), str, sequence (array), mapping (dictionary).

    Raises:
      TypeError: a value of another type, or a mapping key that is not a string.
    """
    with context, ir.Location.unknown():
        return _to_attr(data)


def _to_attr(data: object) -> ir.Attribute:
    if isinstance(data, bool):
        return ir.BoolAttr.get(data)
    if isinstance(data, str):
        return ir.StringAttr.get(data)
    if isinstance(data, Integral):
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), int(data))
    if isinstance(data, Real):
        return ir.FloatAttr.get(ir.F64Type.get(), float(data))
    if isinstance(data, Mapping):
        for key in data:
            if not isinstance(key, str):
                raise TypeError(f"key {key!r} of a dictionary attribute must be a string")
        return ir.DictAttr.get({key: _to_attr(value) for key, value in data.items()})
    if isinstance(data, Sequence):
        return ir.ArrayAttr.get([_to_attr(value) for value in data])
    raise TypeError(f"no attribute for {data!r} of type {type(data).__name__}")


def from_attr(attribute: ir.Attribute) -> Any:
    """The plain data of a builtin attribute: what `to_attr` was given, with tuples as lists.

    Raises:
      TypeError: an attribute that is not a bool, integer, float, string, array or dictionary.
    """
    if isinstance(attribute, ir.StringAttr | ir.BoolAttr | ir.IntegerAttr | ir.FloatAttr):
        return attribute.value
    if isinstance(attribute, ir.ArrayAttr):
        return [from_attr(value) for value in attribute]
    if isinstance(attribute, ir.DictAttr):
        return {named.name: from_attr(named.attr) for named in attribute}
    raise TypeError(f"{attribute} is not a string, number, array or dictionary")


@dataclass(frozen=True, slots=True)
class Scene:
    """What a verifier knows of the place of an attribute: the meshes of the module, and its cluster's device count.

    `type` is the type of the argument or result that carries the attribute, `position` its position, `op` the
    operation, `place` one of `RhinoAttribute.places`. `axes` are those of the meshes in the function's topology,
    `placement` the cluster's devices of meshes, where the module gives them.
    """

    op: ir.Operation
    type: ir.Type | None = None
    mesh_devices: Mapping[str, int] = field(default_factory=dict)
    cluster_devices: int | None = None
    axes: Mapping[str, Sequence[tuple[str, int]]] = field(default_factory=dict)
    placement: Mapping[str, Sequence[int]] = field(default_factory=dict)
    place: str = "op"
    position: int = -1


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
        for fault in cls.schema.check(data):
            raise ValueError(fault.at(cls.name))
        return to_attr(data, context)

    @classmethod
    def from_attr(cls, attribute: ir.Attribute) -> Any:
        """The plain data of the attribute, as `to_attr` took it. RhinoError where it has not the schema."""
        again = "make the module again with this rhino"
        try:
            data = from_attr(attribute)
        except TypeError as error:
            raise RhinoError(f"{cls.name}: {error}", again) from None
        for fault in cls.schema.check(data):
            raise RhinoError(fault.at(cls.name), fault.remedy or again)
        return data

    @classmethod
    def of(cls, op: ir.Operation | ir.Module) -> Any | None:
        """The data attached to an operation or module, None without it. Raises RhinoError if it is malformed."""
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
        found = list(cls.schema.check(data))
        yield from (fault.told(cls.name) for fault in found)
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
