"""Specs in a JSON file: a mesh, specs by tensor and by rules, and rules of logical axes.

Owns the file's schema. What specs mean is in `specs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rhino.errors import RhinoError
from rhino.experts.specs import Specs
from rhino.schema.document import from_json
from rhino.schema.kinds import Fault, Faults, Field, Int, ListOf, MapOf, Record, Schema, String, TupleOf, show
from rhino.schema.kinds import Path as Place

_GIVE = "see docs/guide/experts.md for what is in it"


@dataclass(frozen=True, slots=True)
class Axes(Schema):
    """What a spec has for one dimension: null, a name, or an array of names."""

    def check(self, value: Any, path: Place = ()) -> Faults:
        names = value if isinstance(value, list | tuple) else [value]
        if value is not None and not all(isinstance(name, str) and name for name in names):
            yield Fault(path, f"must be null, an axis, or an array of axes, got {show(value)}")

    def read(self, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    def describe(self) -> str:
        return 'null or "axis" or ["axis", ...]'


_SPEC = ListOf(Axes())


def _problems(data: Mapping[str, Any]) -> Faults:
    if not any(data.get(key) for key in ("tensors", "rules")):
        yield Fault((), "lays nothing out", "give tensors or rules")


FILE = Record(
    {
        "mesh": Field(MapOf(Int(1)), 'the size of each axis, outermost first, {"data": 2, "model": 4}'),
        "tensors": Field(MapOf(_SPEC), "specs by an argument's name or path", optional=True),
        "rules": Field(
            ListOf(TupleOf((String(filled=True), _SPEC))), "[regular expression, spec] pairs", optional=True
        ),
        "axis_rules": Field(
            ListOf(TupleOf((String(filled=True), Axes()))),
            "[logical name, mesh axes] pairs, where specs have logical names",
            optional=True,
        ),
    },
    make=Specs,
    rules=_problems,
)


def is_specs(data: Any) -> bool:
    """Whether the data of a JSON file is of specs, rather than a plan's, which is versioned."""
    return isinstance(data, Mapping) and "schema" not in data


def load_specs(path: Path) -> Specs:
    """The specs in a file.

    Raises:
      RhinoError: it cannot be read, or the place of the first thing in it that is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RhinoError(f"{path}: cannot read: {getattr(error, 'strerror', None) or error}", _GIVE) from None
    document = from_json(text, "the file of specs", str(path), _GIVE)
    found = FILE.read(document.checked(FILE))
    assert isinstance(found, Specs)
    return found
