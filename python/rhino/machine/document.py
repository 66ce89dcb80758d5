"""A YAML document as a tree of values that remember their line and column, and the way back to text.

Owns YAML syntax and its errors. Knows nothing of what the fields mean: see `schema`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from rhino.errors import RhinoError

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class YamlNode:
    """A scalar, a tuple of nodes or a dict of nodes. `line` and `column` count from 1; 0 when there is no text."""

    value: Scalar | tuple[YamlNode, ...] | dict[str, YamlNode]
    line: int = 0
    column: int = 0


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads 450e9 as text; here it is the number every user means."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)
_SCALARS = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null"))


def from_data(data: object) -> YamlNode:
    """The tree of plain Python data; anything that is neither list, mapping nor scalar is its text."""
    if isinstance(data, Mapping):
        return YamlNode({str(key): from_data(value) for key, value in data.items()})
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return YamlNode(tuple(from_data(value) for value in data))
    return YamlNode(data if isinstance(data, str | int | float | bool | None) else str(data))


def from_yaml(text: str, where: str) -> YamlNode:
    """The tree of a YAML text. RhinoError "<where>:line:column: cause" when it is not one valid document."""
    loader = None
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{where}:{mark.line + 1}:{mark.column + 1}" if mark else where
        cause = " ".join(part for part in (error.problem, error.context) if part)
        raise RhinoError(f"{place}: not valid YAML: {cause}", "fix the syntax at this place") from None
    except yaml.YAMLError as error:
        cause = str(error).splitlines()[0]
        raise RhinoError(f"{where}: not valid YAML: {cause}", "give a YAML text file") from None
    finally:
        if loader is not None:
            loader.dispose()
    if root is None:
        raise RhinoError(f"{where}: the file is empty", "`rhino cluster show dgx-h100 --yaml` prints a complete one")
    return _convert(loader, root, where, ())


def _convert(loader: _Loader, node: yaml.Node, where: str, parents: tuple[yaml.Node, ...]) -> YamlNode:
    line, column = node.start_mark.line + 1, node.start_mark.column + 1
    if any(node is parent for parent in parents):
        raise RhinoError(f"{where}:{line}:{column}: an alias contains itself", "write the value out")
    if isinstance(node, yaml.MappingNode):
        fields: dict[str, YamlNode] = {}
        for key, value in node.value:
            place = f"{where}:{key.start_mark.line + 1}:{key.start_mark.column + 1}"
            if not isinstance(key, yaml.ScalarNode):
                raise RhinoError(f"{place}: a field name is a list or a mapping", "use a plain name")
            if key.value in fields:
                raise RhinoError(f"{place}: {key.value}: given twice", "remove one of the two")
            child = _convert(loader, value, where, (*parents, node))
            # Errors point at the field's name: the value may start lines below it.
            fields[key.value] = YamlNode(child.value, key.start_mark.line + 1, key.start_mark.column + 1)
        return YamlNode(fields, line, column)
    if isinstance(node, yaml.SequenceNode):
        return YamlNode(tuple(_convert(loader, item, where, (*parents, node)) for item in node.value), line, column)
    if node.tag not in _SCALARS:
        return YamlNode(str(node.value), line, column)
    try:
        return YamlNode(loader.construct_object(node), line, column)  # type: ignore[no-untyped-call]
    except (yaml.YAMLError, ValueError):
        return YamlNode(str(node.value), line, column)


def to_yaml(data: Mapping[str, Any]) -> str:
    """YAML text in the order of the data; `from_yaml` gives the same values back, floats to the last bit."""
    return str(yaml.safe_dump(dict(data), sort_keys=False, width=100, allow_unicode=True))
