"""What every pass says about itself, read from its source: summary, documentation, options. Imports no pass.

Owns the docstring conventions. `rhino-opt --help` and the reference page print this; a test holds it equal to the
classes.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rhino.passes.registry import TABLE, Option, asked

SECTIONS = ("Requires", "Ensures", "Options", "Example")


@dataclass(frozen=True, slots=True)
class PassDoc:
    """The documentation of one pass. `sections` has the text of Requires, Ensures and Example, as written."""

    name: str
    summary: str
    description: str
    sections: dict[str, str]
    options: tuple[Option, ...]


def all_docs() -> Iterator[PassDoc]:
    """The documentation of the registered passes, in the order of the table."""
    return map(pass_doc, TABLE)


@cache
def pass_doc(name: str) -> PassDoc:
    """The documentation of one registered pass. Raises KeyError for any other name."""
    module, _, cls = TABLE[name].partition(":")
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return PassDoc(name, "(not installed)", "", {}, ())
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    (node,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == cls)
    return parse_doc(name, ast.get_docstring(node) or "", tuple(_options(node)))


def parse_doc(name: str, docstring: str, options: tuple[Option, ...]) -> PassDoc:
    """The parts of a dedented docstring; options without documentation take theirs from `Options:`."""
    parts = re.split(rf"^({'|'.join(SECTIONS)}):", docstring, flags=re.MULTILINE)
    summary, _, description = parts[0].strip().partition("\n\n")
    sections = {title: _dedent(text) for title, text in zip(parts[1::2], parts[2::2], strict=True)}
    listed = dict(re.findall(r"^([a-z][\w-]*): (.+)$", sections.pop("Options", ""), flags=re.MULTILINE))
    described = tuple(
        o if o.doc else Option(o.name, o.field, o.type, o.default, listed.get(o.name, ""), o.choices) for o in options
    )
    return PassDoc(name, " ".join(summary.split()), description.strip(), sections, described)


def _dedent(text: str) -> str:
    """Section text without its indentation; its first line may follow the title on the same line."""
    first, _, rest = text.partition("\n")
    return f"{first.strip()}\n{textwrap.dedent(rest)}".strip()


def _options(node: ast.ClassDef) -> Iterator[Option]:
    for item in node.body:
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name) or item.value is None:
            continue
        annotation = ast.unparse(item.annotation)
        if annotation.startswith("ClassVar"):
            continue
        default, doc, choices = _default(item.value)
        field = item.target.id
        yield Option(field.replace("_", "-"), field, annotation, default, doc, choices)


def _default(value: ast.expr) -> tuple[Any, str, tuple[str, ...]]:
    """Those written as a literal, as `option(default, doc, choices=...)`, or as `asked(name, doc, choices=...)`."""
    if not isinstance(value, ast.Call):
        return _literal(value), "", ()
    if ast.unparse(value.func) == "asked":
        words = [_literal(argument) for argument in value.args]
        field = asked(*words, **{k.arg: _literal(k.value) for k in value.keywords if k.arg})
        return field.default, field.metadata["doc"], field.metadata["choices"]
    given: dict[str, Any] = dict(zip(("default", "doc", "choices"), map(_literal, value.args), strict=False))
    given.update({k.arg: _literal(k.value) for k in value.keywords if k.arg})
    return given.get("default"), given.get("doc", ""), tuple(given.get("choices", ()))


def _literal(value: ast.expr) -> Any:
    try:
        return ast.literal_eval(value)
    except ValueError:
        raise SyntaxError(f"the options of a pass must be literals, not {ast.unparse(value)}") from None
