"""Documents described by dataclasses: what is told of each field makes the schema that reads it and the data written.

Owns the way between a class and a `Record`. A field of such a class is added in one line, with `told`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, dataclass_transform

from rhino.schema.kinds import Faults, Field, Record, Schema


@dataclass(frozen=True, slots=True)
class Told:
    """What a document has of a field: see `told`."""

    schema: Schema
    doc: str
    key: str
    when: str
    optional: bool


def told(schema: Schema, doc: str, *, key: str = "", when: str = "", optional: bool = False, **default: Any) -> Any:
    """A field of a dataclass that documents have.

    Args:
      doc: what it is, as in "give ..".
      key: what it is called there, where that is not its name.
      when: the attribute of the object without which it is left out of what is written; None is always left out.
      optional: it may be missing where it is read, as whatever has a default may.
      default: `default` or `default_factory`, as of `dataclasses.field`.
    """
    return dataclasses.field(metadata={"told": Told(schema, doc, key, when, optional or bool(default))}, **default)


@dataclass_transform(frozen_default=True, field_specifiers=(told, dataclasses.field))
def described(cls: type[Any] | None = None, *, kw_only: bool = False) -> Any:
    """A frozen, slotted dataclass with fields that are `told`."""
    make = dataclass(frozen=True, slots=True, kw_only=kw_only)
    return make if cls is None else make(cls)


def record(
    cls: type,
    *,
    rules: Callable[[Any], Faults] | None = None,
    extensible: bool = False,
    without: tuple[str, ...] = (),
) -> Record:
    """The schema of documents that are objects of a class, made of its fields that are told, or some of them."""
    known = [(f.name, f.metadata["told"]) for f in dataclasses.fields(cls) if "told" in f.metadata]
    fields = {it.key or name: Field(it.schema, it.doc, it.optional, name) for name, it in known if name not in without}
    return Record(fields, extensible, cls, **({"rules": rules} if rules else {}))


def write(value: Any) -> Any:
    """The plain data of an object whose class is told: what `Record.read` makes it of."""
    if dataclasses.is_dataclass(value):
        found = {}
        for field in dataclasses.fields(value):
            it, inner = field.metadata.get("told"), getattr(value, field.name)
            if it is not None and inner is not None and (not it.when or getattr(value, it.when)):
                found[it.key or field.name] = write(inner)
        return found
    if isinstance(value, Mapping):
        return {key: write(inner) for key, inner in value.items()}
    return [write(inner) for inner in value] if isinstance(value, list | tuple) else value
