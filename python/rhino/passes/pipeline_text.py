"""The textual pass pipeline, mlir-opt's syntax: `builtin.module(a,func.func(b{k=v}),c{k=1 l='x y'})`.

Owns parsing text into names and raw options with columns. Knows nothing of which passes exist.
"""

from __future__ import annotations

from dataclasses import dataclass

from rhino.errors import RhinoError

_CLOSING = {"(": ")", "{": "}", "[": "]", "<": ">"}


class PipelineSyntaxError(RhinoError):
    """Bad pipeline text; `column` is 1-based."""

    def __init__(self, message: str, text: str, column: int, remedy: str = "") -> None:
        super().__init__(message, remedy)
        self.text = text
        self.column = column


@dataclass(frozen=True, slots=True)
class Element:
    """A pass with its options as written, or (when `children` is not None) a list of passes nested on an op."""

    name: str
    column: int
    options: str = ""
    children: tuple[Element, ...] | None = None


def parse_pipeline(text: str) -> tuple[Element, ...]:
    """The elements inside the anchor `builtin.module(...)` that a whole pipeline must have.

    Raises:
      PipelineSyntaxError: the text is malformed or anchored on another op.
    """
    elements = parse_elements(text)
    if len(elements) != 1 or elements[0].children is None:
        raise PipelineSyntaxError(
            "expected the pipeline to be wrapped in its anchor op", text, 1, f"write builtin.module({text})"
        )
    (root,) = elements
    if root.name not in ("builtin.module", "any"):
        message = f"cannot run a pipeline anchored on '{root.name}' on a 'builtin.module' op"
        raise PipelineSyntaxError(message, text, root.column, f"write builtin.module({text})")
    assert root.children is not None
    return root.children


def parse_elements(text: str) -> tuple[Element, ...]:
    """A comma-separated list of elements, without an anchor. Raises PipelineSyntaxError."""
    elements, at = _list(text, 0)
    if at != len(text):
        raise PipelineSyntaxError(f"unexpected '{text[at]}'", text, at + 1)
    return elements


def _list(text: str, at: int) -> tuple[tuple[Element, ...], int]:
    elements: list[Element] = []
    at = _skip_spaces(text, at)
    while at < len(text) and text[at] != ")":
        element, at = _element(text, at)
        elements.append(element)
        at = _skip_spaces(text, at)
        if at < len(text) and text[at] == ",":
            at = _skip_spaces(text, at + 1)
            if at == len(text) or text[at] == ")":
                raise PipelineSyntaxError("expected a pass after ','", text, at + 1)
        elif at < len(text) and text[at] != ")":
            raise PipelineSyntaxError(f"expected ',' between passes, got '{text[at]}'", text, at + 1)
    return tuple(elements), at


def _element(text: str, at: int) -> tuple[Element, int]:
    start = at
    while at < len(text) and (text[at].isalnum() or text[at] in "-_."):
        at += 1
    name = text[start:at]
    if not name:
        raise PipelineSyntaxError(f"expected a pass name, got '{text[at]}'", text, at + 1)
    if at < len(text) and text[at] == "(":
        children, end = _list(text, at + 1)
        if end == len(text):
            raise PipelineSyntaxError(f"expected ')' to close '{name}('", text, end + 1)
        return Element(name, start + 1, children=children), end + 1
    if at < len(text) and text[at] == "{":
        end = _matching(text, at)
        return Element(name, start + 1, text[at + 1 : end].strip()), end + 1
    return Element(name, start + 1), at


def _matching(text: str, at: int) -> int:
    """The index of the bracket that closes the one at `at`, skipping quoted text."""
    expected = [_CLOSING[text[at]]]
    for i in range(at + 1, len(text)):
        c = text[i]
        if expected[-1] in "'\"":
            if c == expected[-1]:
                expected.pop()
        elif c in "'\"":
            expected.append(c)
        elif c in "({[":
            expected.append(_CLOSING[c])
        elif c == expected[-1]:
            expected.pop()
            if not expected:
                return i
    raise PipelineSyntaxError(f"expected '{expected[-1]}' before the end of the text", text, len(text) + 1)


def _skip_spaces(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def parse_options(text: str) -> list[tuple[str, str]]:
    """The (key, value) pairs of `k=v l=a,b m={n=1} o='p q' flag`; a key without value has the value "".

    Quotes and the outer braces of a value are removed; inside them spaces do not separate.

    Raises:
      PipelineSyntaxError: a bracket or quote is not closed, or a key is missing.
    """
    pairs: list[tuple[str, str]] = []
    at = _skip_spaces(text, 0)
    while at < len(text):
        start = at
        while at < len(text) and text[at] != "=" and not text[at].isspace():
            at += 1
        key = text[start:at]
        if not key:
            raise PipelineSyntaxError("expected an option name before '='", text, at + 1)
        value = ""
        if at < len(text) and text[at] == "=":
            value, at = _value(text, at + 1)
        pairs.append((key, value))
        at = _skip_spaces(text, at)
    return pairs


def _value(text: str, at: int) -> tuple[str, int]:
    start = at
    while at < len(text) and not text[at].isspace():
        if text[at] in "'\"":
            end = text.find(text[at], at + 1)
            if end < 0:
                raise PipelineSyntaxError(f"expected {text[at]} before the end of the text", text, len(text) + 1)
            at = end + 1
        elif text[at] in "({[":
            at = _matching(text, at) + 1
        else:
            at += 1
    raw = text[start:at]
    whole = len(raw) > 1 and ((raw[0] in "'\"" and raw.find(raw[0], 1) == len(raw) - 1) or _is_braced(raw))
    return (raw[1:-1] if whole else raw), at


def _is_braced(raw: str) -> bool:
    return raw[0] == "{" and _matching(raw, 0) == len(raw) - 1
