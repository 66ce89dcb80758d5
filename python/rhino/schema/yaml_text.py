"""YAML texts: the document in one, with its places, and the way back.

Owns YAML's syntax and its errors. Knows nothing of what the fields mean.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from rhino.errors import RhinoError
from rhino.schema.document import Document
from rhino.schema.kinds import Path


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads 450e9 as text; here it is the number every user means."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)
_SCALARS = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null"))


def from_yaml(text: str, name: str, where: str, remedy: str) -> Document:
    """The document of a YAML text. RhinoError "<where>:line:column: cause" when it is not a single valid one.

    Args:
      remedy: what to do about an empty text.
    """
    loader = None
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            raise RhinoError(f"{where}: the file is empty", remedy)
        return Document(_data(loader, root, where, ()), name, where, lambda path: _place(root, path))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{where}:{mark.line + 1}:{mark.column + 1}" if mark else where
        cause = " ".join(part for part in (error.problem, error.context) if part)
        raise RhinoError(f"{place}: not valid YAML: {cause}", "fix the syntax at this place") from None
    except yaml.YAMLError as error:
        cause = str(error).splitlines()[0]
        raise RhinoError(f"{where}: not valid YAML: {cause}", "give a YAML text file") from None
    except RecursionError:
        raise RhinoError(f"{where}:1:1: not YAML that can be read: too deep", "write fewer brackets") from None
    finally:
        if loader is not None:
            loader.dispose()


def _data(loader: _Loader, node: yaml.Node, where: str, parents: tuple[yaml.Node, ...]) -> Any:
    def error(at: yaml.Node, cause: str, remedy: str) -> RhinoError:
        return RhinoError(f"{where}:{at.start_mark.line + 1}:{at.start_mark.column + 1}: {cause}", remedy)

    if any(node is parent for parent in parents):
        raise error(node, "an alias contains itself", "write the value out")
    if isinstance(node, yaml.MappingNode):
        fields: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise error(key, "a field name is a list or a mapping", "use a plain name")
            if key.value in fields:
                raise error(key, f"{key.value}: given twice", "remove one of the two")
            fields[key.value] = _data(loader, value, where, (*parents, node))
        return fields
    if isinstance(node, yaml.SequenceNode):
        return [_data(loader, item, where, (*parents, node)) for item in node.value]
    try:
        return loader.construct_object(node) if node.tag in _SCALARS else str(node.value)  # type: ignore[no-untyped-call]
    except (yaml.YAMLError, ValueError):
        return str(node.value)


def _place(node: yaml.Node, path: Path) -> tuple[int, int]:
    """Line and column of a field's name, because its value may start lines below it, or of an element of a list."""
    mark = node.start_mark
    for step in path:
        pairs = node.value if isinstance(node, yaml.MappingNode) else [(item, item) for item in node.value]
        found = [pair for n, pair in enumerate(pairs) if step in (n, pair[0].value)]
        if not found:
            break
        mark, node = found[0][0].start_mark, found[0][1]
    return mark.line + 1, mark.column + 1


def to_yaml(data: Mapping[str, Any]) -> str:
    """YAML text in the order of the data; `from_yaml` gives the same values back, floats to the last bit."""
    return str(yaml.safe_dump(dict(data), sort_keys=False, width=100, allow_unicode=True))
