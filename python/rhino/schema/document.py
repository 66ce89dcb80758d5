"""A document as plain data that knows the line and column of each value, from JSON or from data; its errors.

Owns JSON's syntax and places, and the one form of errors: "file:line:column: path cause; remedy". YAML is elsewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rhino.errors import RhinoError
from rhino.schema.kinds import Fault, Path, Schema

_SPACE = re.compile(r"[ \t\n\r]*")


@dataclass(frozen=True, slots=True)
class Document:
    """Plain data with the places of its values.

    Attributes:
      data: text, bool, int, float, None, lists, and dictionaries with text as keys.
      name: what errors call all of it, "the cluster".
      where: the file, or what stands for one.
      place: line and column from 1 of the value at a path, of its key if it has one; () where there is no text.
      remedy: what to do about any error that has no remedy of its own; empty to give what is meant.
    """

    data: Any
    name: str
    where: str
    place: Callable[[Path], Sequence[int]] = lambda path: ()
    remedy: str = ""

    def checked(self, schema: Schema) -> Any:
        """The data, normalized. RhinoError at the place of its first problem."""
        data = schema.normalize(self.data)
        for problem in schema.check(data):
            raise self.error(problem)
        return data

    def error(self, problem: Fault) -> RhinoError:
        """The error of a problem, in one line."""
        place = ":".join(map(str, (self.where, *self.place(problem.path))))
        text = problem.at("").removeprefix(".") if problem.path else problem.at(self.name)
        remedy = problem.remedy or self.remedy or (problem.meant and f"give {problem.meant}")
        return RhinoError(f"{place}: {text}", remedy)


def from_data(data: object, name: str, where: str) -> Document:
    """The document of plain Python data; anything that is neither list, mapping nor scalar is its text."""
    return Document(_plain(data), name, where)


def _plain(data: object) -> Any:
    if isinstance(data, Mapping):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return [_plain(value) for value in data]
    return data if isinstance(data, str | int | float | bool | None) else str(data)


def from_json(text: str, name: str, where: str, remedy: str) -> Document:
    """The document of a JSON text. RhinoError "<where>:line:column: cause" when it is not valid."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise RhinoError(f"{where}:{error.lineno}:{error.colno}: not JSON: {error.msg}", remedy) from None
    except (ValueError, RecursionError) as error:  # thousands of digits, or of brackets
        raise RhinoError(f"{where}:1:1: not JSON that can be read: {error}", remedy) from None
    return Document(data, name, where, lambda path: _place(text, path), remedy)


def _place(text: str, path: Path) -> tuple[int, int]:
    """Line and column of the value at a path of a valid JSON text, found by reading it again as far as that."""
    value, at = _next(text, 0), _next(text, 0)
    for step in path:
        found = next((pair for pair in _inside(text, value) if pair[0] == step), None)
        if found is None:
            break
        _, at, value = found
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


def _inside(text: str, at: int) -> list[tuple[str | int, int, int]]:
    """The key or position, its place and the value's place of all that is directly in what begins at a place.

    Backwards, because of two values of one key the last one counts.
    """
    found: list[tuple[str | int, int, int]] = []
    read, opened = json.JSONDecoder().raw_decode, text[at]
    at = _next(text, at + 1)
    while opened in "{[" and text[at] not in "}]":
        key, start = len(found), at
        if opened == "{":
            key, at = read(text, at)
            at = _next(text, _next(text, at) + 1)
        found.append((key, start, at))
        at = _next(text, read(text, at)[1])
        at = _next(text, at + 1) if text[at] == "," else at
    return found[::-1]


def _next(text: str, at: int) -> int:
    """The first place from `at` on that is no space."""
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()
