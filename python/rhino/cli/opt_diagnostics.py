"""How rhino-opt shows diagnostics: `file:line:col: error: message`, the source line, a caret, then the notes.

Owns that format, and --verify-diagnostics: comparing what was reported with `expected-*` comments. Knows no MLIR.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

from rhino.errors import RhinoError
from rhino.ir.diagnostics import CURRENT_OPERATION, Diagnostic, Position

_OPERATION = re.compile(r'(?:see current operation:)?\s*(?:%[\w:, %]+ = )?"?[a-z]\w*\.\w[\w.]*"?[ (<{@]')
_MAX_OPERATION_CHARACTERS = 400


@dataclass(slots=True)
class Printer:
    """Prints diagnostics of one input. `sources` maps file names to their text; others are read when first needed.

    MLIR calls text that came from memory `-`; the printer shows the input's name instead, and also for unknown places.
    `first` is the line to show for the input as a whole, 0 for none.
    """

    out: TextIO
    input_name: str
    sources: dict[str, str] = field(default_factory=dict)
    first: int = 0
    _lines: dict[str, list[str]] = field(default_factory=dict)

    def __call__(self, diagnostic: Diagnostic) -> None:
        """Print one diagnostic and its notes."""
        for each in (diagnostic, *diagnostic.notes):
            place = placed(each.position, self.input_name)
            if place.line == 0 and place.file == self.input_name:
                place = replace(place, line=self.first)
            each = replace(each, position=place, message=_shorten(each.message))
            print(each, file=self.out)
            self._snippet(each.position)

    def _snippet(self, position: Position) -> None:
        lines = self._source_lines(position.file)
        if 0 < position.line <= len(lines):
            line = lines[position.line - 1]
            print(line, file=self.out)
            before = line[: max(position.column - 1, 0)]
            print("".join("\t" if c == "\t" else " " for c in before) + "^", file=self.out)

    def _source_lines(self, file: str) -> list[str]:
        if file not in self._lines:
            text = self.sources.get(file)
            if text is None:
                try:
                    text = Path(file).read_text(encoding="utf-8") if not file.startswith("<") else ""
                except (OSError, UnicodeDecodeError):
                    text = ""
            self._lines[file] = text.split("\n") if text else []
        return self._lines[file]


def placed(position: Position, input_name: str) -> Position:
    """The position with the name of the input in place of MLIR's names for text without a file."""
    return replace(position, file=input_name) if position.file in ("-", "<unknown>") else position


def _shorten(message: str) -> str:
    """MLIR's note with the operation at fault, which may be a whole function, cut to a few lines."""
    if message.startswith(CURRENT_OPERATION) and len(message) > _MAX_OPERATION_CHARACTERS:
        return message[:_MAX_OPERATION_CHARACTERS].rstrip() + " ..."
    return message


@dataclass(slots=True)
class Expectation:
    """One `expected-*` comment: severity, the line it speaks of (0 for none), and how often it was met.

    `count` is how often it must be met, None for any number of times but at least once, as mlir-opt has it.
    """

    severity: str
    line: int
    pattern: re.Pattern[str]
    text: str
    position: Position
    count: int | None = None
    met: int = 0

    @property
    def is_wanting(self) -> bool:
        """Whether it is still to be met."""
        return self.met < (self.count or 1)


_DESIGNATOR = re.compile(
    r"expected-(?P<severity>error|warning|remark|note)(?P<re>-re)?\s*"
    r"(?:@(?P<at>[+-]\d+|above|below|unknown)\s*)?(?P<count>\d+)?\s*\{\{(?P<text>.*)\}\}"
)


def expectations(text: str, file: str) -> list[Expectation]:
    """The `expected-*` comments of a source text.

    `@+N` and `@-N` count lines, `@above` and `@below` mean the nearest line that has no such comment, and
    `@unknown` means no line at all. `-re` makes the parts in inner {{..}} regular expressions. A number before the
    braces asks for exactly that many, which mlir-opt has not.

    Raises:
      RhinoError: a part in inner {{..}} is no regular expression.
    """
    found: list[Expectation] = []
    waiting: list[Expectation] = []  # for the next line without a designator
    last_plain = 1
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        here = list(_line_expectations(line, Position(file, number), last_plain))
        if not here:
            for expectation in waiting:
                expectation.line = number
            waiting = []
            last_plain = number
        waiting += [e for e in here if e.line < 0]
        found += here
    for expectation in waiting:
        expectation.line = len(lines)
    return found


def _line_expectations(line: str, position: Position, above: int) -> Iterator[Expectation]:
    starts = [m.start() for m in re.finditer(r"expected-(?=error|warning|remark|note)", line)]
    ends = [*starts[1:], len(line)]
    for start, end in zip(starts, ends, strict=False):
        match = _DESIGNATOR.match(line[start:end].rstrip())
        if match is None:
            continue
        at = match["at"]
        target = position.line
        if at == "above":
            target = above
        elif at == "below":
            target = -1
        elif at == "unknown":
            target = 0
        elif at:
            target += int(at)
        where = replace(position, column=start + 1)
        pattern = _regex(match["text"], where) if match["re"] else re.compile(re.escape(match["text"]))
        count = int(match["count"]) if match["count"] else None
        yield Expectation(match["severity"], target, pattern, match["text"], where, count)


# What POSIX calls characters inside of brackets, which LLVM's expressions know and Python's do not.
_CLASSES = {
    "[:alnum:]": "a-zA-Z0-9", "[:alpha:]": "a-zA-Z", "[:blank:]": " \\t", "[:digit:]": "0-9", "[:lower:]": "a-z",
    "[:punct:]": re.escape("".join(c for c in map(chr, range(33, 127)) if not c.isalnum())),
    "[:space:]": "\\s", "[:upper:]": "A-Z", "[:xdigit:]": "0-9a-fA-F",
}  # fmt: skip


def _regex(text: str, where: Position) -> re.Pattern[str]:
    """A pattern from text whose parts in {{..}} are regular expressions."""
    parts = re.split(r"\{\{(.*?)\}\}", text)
    parts[1::2] = [re.sub(r"\[:[a-z]+:\]", lambda name: _CLASSES.get(name[0], name[0]), part) for part in parts[1::2]]
    try:
        return re.compile("".join(f"(?:{part})" if i % 2 else re.escape(part) for i, part in enumerate(parts)))
    except re.error as error:
        raise RhinoError(f"{where}: '{text}' is no regular expression: {error}") from None


def compare(
    wanted: list[Expectation], reported: list[Diagnostic], file: str, only_expected: bool = False
) -> list[Diagnostic]:
    """The differences between expected and reported diagnostics, as errors; empty when they agree.

    The rules are those of mlir-opt's `--verify-diagnostics`: one expectation stands for every equal diagnostic of its
    line. With `only_expected` it is no difference that more is reported than expected.
    """
    wrong: list[Diagnostic] = []
    flat = [(each, diagnostic) for diagnostic in reported for each in (diagnostic, *diagnostic.notes)]
    for diagnostic, whole in flat:
        line = diagnostic.position.line if diagnostic.position.file in (file, "-") else 0
        alike = [e for e in wanted if e.line == line and e.pattern.search(diagnostic.message)]
        fitting = [e for e in alike if e.severity == diagnostic.severity and (e.is_wanting or e.count is None)]
        if fitting:
            next((e for e in fitting if e.is_wanting), fitting[0]).met += 1
        # mlir-opt does not attach the operation while it verifies; jaxlib's bindings cannot switch that off.
        elif not only_expected and not _is_operation(diagnostic, whole):
            wrong.append(_unexpected(diagnostic, [e for e in alike if e.severity != diagnostic.severity]))
    for expectation in wanted:
        if expectation.is_wanting:
            message = f'expected {expectation.severity} "{expectation.text}" was not produced'
            wrong.append(Diagnostic("error", message, expectation.position))
    return wrong


def _is_operation(note: Diagnostic, whole: Diagnostic) -> bool:
    """Whether a note only prints the operation that the whole diagnostic is of."""
    return note.severity == "note" and note.position == whole.position and bool(_OPERATION.match(note.message))


def _unexpected(diagnostic: Diagnostic, alike: list[Expectation]) -> Diagnostic:
    """The error for a diagnostic that nobody expects, or that is expected `alike`, with another severity."""
    if alike:
        message = f"'{diagnostic.severity}' diagnostic emitted when expecting a '{alike[-1].severity}'"
        return Diagnostic("error", message, alike[-1].position)
    return Diagnostic("error", f"unexpected {diagnostic.severity}: {diagnostic.message}", diagnostic.position)
