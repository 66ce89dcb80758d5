"""What the value of a rhino attribute may be: small composable schemas over plain Python data, and its form in MLIR.

Owns checking data, naming the path of what is wrong, and converting to and from builtin attributes. Knows no attribute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, TypeAlias

from jaxlib.mlir import ir

Problems: TypeAlias = Iterator[str]


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


class Schema:
    """What a value may be. `check` yields one sentence per problem, each starting with the path of the value."""

    def check(self, value: object, path: str) -> Problems:
        """The problems of `value`, none if it is valid."""
        raise NotImplementedError

    def normalize(self, value: Any) -> Any:
        """The value with integers made floats where a float is wanted, so that 0 may stand for 0.0."""
        return value

    def describe(self) -> str:
        """The schema in a few words, for the reference page."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class String(Schema):
    """A string, one of `choices` when there are any."""

    choices: tuple[str, ...] = ()

    def check(self, value: object, path: str) -> Problems:
        if not isinstance(value, str):
            yield f"{path} must be a string, got {show(value)}"
        elif self.choices and value not in self.choices:
            yield f"{path} must be one of {', '.join(map(show, self.choices))}, got {show(value)}"

    def describe(self) -> str:
        return " or ".join(f'`"{c}"`' for c in self.choices) or "string"


@dataclass(frozen=True, slots=True)
class Int(Schema):
    """A 64-bit integer, at least `minimum`."""

    minimum: int | None = None

    def check(self, value: object, path: str) -> Problems:
        if isinstance(value, bool) or not isinstance(value, Integral):
            yield f"{path} must be an integer, got {show(value)}"
        elif self.minimum is not None and value < self.minimum:
            yield f"{path} must be at least {self.minimum}, got {value}"

    def describe(self) -> str:
        return "i64" + (f" >= {self.minimum}" if self.minimum is not None else "")


@dataclass(frozen=True, slots=True)
class Float(Schema):
    """A 64-bit float, at least `minimum`."""

    minimum: float | None = None

    def check(self, value: object, path: str) -> Problems:
        if isinstance(value, bool) or not isinstance(value, float):
            yield f"{path} must be a float, got {show(value)}"
        elif self.minimum is not None and not value >= self.minimum:
            yield f"{path} must be at least {self.minimum:g}, got {value:g}"

    def normalize(self, value: Any) -> Any:
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else value

    def describe(self) -> str:
        return "f64" + (f" >= {self.minimum:g}" if self.minimum is not None else "")


@dataclass(frozen=True, slots=True)
class ListOf(Schema):
    """An array whose elements all have one schema; exactly `length` of them when given."""

    element: Schema
    length: int | None = None

    def check(self, value: object, path: str) -> Problems:
        if not isinstance(value, list | tuple):
            yield f"{path} must be an array, got {show(value)}"
            return
        if self.length is not None and len(value) != self.length:
            yield f"{path} must have {self.length} elements, got {len(value)}"
        for i, element in enumerate(value):
            yield from self.element.check(element, f"{path}[{i}]")

    def normalize(self, value: Any) -> Any:
        return [self.element.normalize(v) for v in value] if isinstance(value, list | tuple) else value

    def describe(self) -> str:
        return (
            f"[{self.element.describe()}, ...]"
            if self.length is None
            else f"[{self.length} x {self.element.describe()}]"
        )


@dataclass(frozen=True, slots=True)
class TupleOf(Schema):
    """An array of fixed length with a schema per position."""

    elements: tuple[Schema, ...]

    def check(self, value: object, path: str) -> Problems:
        if not isinstance(value, list | tuple) or len(value) != len(self.elements):
            yield f"{path} must be {self.describe()}, got {show(value)}"
            return
        for i, (schema, element) in enumerate(zip(self.elements, value, strict=True)):
            yield from schema.check(element, f"{path}[{i}]")

    def describe(self) -> str:
        return f"[{', '.join(e.describe() for e in self.elements)}]"


@dataclass(frozen=True, slots=True)
class MapOf(Schema):
    """A dictionary with any keys whose values all have one schema."""

    value: Schema
    keys: tuple[str, ...] = ()

    def check(self, value: object, path: str) -> Problems:
        if not isinstance(value, Mapping):
            yield f"{path} must be a dictionary, got {show(value)}"
            return
        for key, inner in value.items():
            if self.keys and key not in self.keys:
                yield f"{path} has unknown key '{key}'; known keys are {', '.join(self.keys)}"
            else:
                yield from self.value.check(inner, f"{path}.{key}")

    def normalize(self, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {key: self.value.normalize(inner) for key, inner in value.items()}

    def describe(self) -> str:
        return f"{{name = {self.value.describe()}, ...}}"


@dataclass(frozen=True, slots=True)
class Field:
    """One key of a record: its schema, what it means, and whether it may be missing."""

    schema: Schema
    doc: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Record(Schema):
    """A dictionary with known keys; an `extensible` one may have others, which are not checked."""

    fields: Mapping[str, Field] = field(default_factory=dict)
    extensible: bool = False

    def check(self, value: object, path: str) -> Problems:
        if not isinstance(value, Mapping):
            yield f"{path} must be a dictionary, got {show(value)}"
            return
        for key, known in self.fields.items():
            if key in value:
                yield from known.schema.check(value[key], f"{path}.{key}")
            elif not known.optional:
                yield f"{path} has no key '{key}'"
        if not self.extensible:
            for key in value:
                if key not in self.fields:
                    yield f"{path} has unknown key '{key}'; known keys are {', '.join(self.fields)}"

    def normalize(self, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {k: self.fields[k].schema.normalize(v) if k in self.fields else v for k, v in value.items()}

    def describe(self) -> str:
        return "{" + ", ".join(key + ("?" if f.optional else "") for key, f in self.fields.items()) + "}"


def show(value: object) -> str:
    """A value as it looks in MLIR text, shortened, for messages."""
    text = f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
