"""What rhino-opt reads: the bytes of a file or of standard input, cut into parts, and each part parsed.

Owns telling text, bytecode and neither apart. Knows nothing of passes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rhino.errors import JAX_WRITES
from rhino.ir.diagnostics import Diagnostic, Position, Sink

if TYPE_CHECKING:
    from jaxlib.mlir import ir

BYTECODE_MAGIC = b"ML\xefR"
DEFAULT_MARKER = "// -----"
# A line that begins as the marker without its last characters does may be meant as one, as for mlir-opt.
_NEAR = 2


class InputError(Exception):
    """The input cannot be read, or is no MLIR; holds the diagnostic to print."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(str(diagnostic))
        self.diagnostic = diagnostic


@dataclass(frozen=True, slots=True)
class InputModule:
    """One module to process. `data` is padded with newlines, so that its line numbers are those of the whole input.

    `path` is the file if the part is all of it, and None otherwise: MLIR then calls the file `-`. `first` is the line
    that stands for a part of several as a whole.
    """

    name: str
    data: bytes
    path: str | None = None
    first: int = 0

    @property
    def is_bytecode(self) -> bool:
        """Whether the part is MLIR bytecode."""
        return self.data.startswith(BYTECODE_MAGIC)

    @property
    def text(self) -> str:
        """The text of the part, empty for bytecode."""
        return "" if self.is_bytecode else self.data.decode()

    def parse(self, context: ir.Context) -> ir.Module:
        """The module. Raises ir.MLIRError; the reasons go to the context's diagnostic handlers."""
        from rhino.dialect.context import parse_bytes, parse_file

        return parse_file(self.path, context) if self.path is not None else parse_bytes(self.data, context)


def read_parts(name: str, marker: str | None, say: Sink) -> list[InputModule]:
    """The parts of a file, or of standard input for `-`; one part when `marker` is None. Warnings go to `say`.

    Raises:
      InputError: the file cannot be read, is empty, or is neither text nor bytecode.
    """
    shown = "<stdin>" if name == "-" else name
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        note = Diagnostic(
            "note", f"give a .mlir or .mlirbc file, or - for standard input; {JAX_WRITES}", Position(shown)
        )
        raise InputError(Diagnostic("error", f"cannot read the file: {reason}", Position(shown), (note,))) from None
    if not data.startswith(BYTECODE_MAGIC) and BYTECODE_MAGIC in data:
        from rhino.compile.exported import is_exported, read_exported

        if is_exported(data):  # loads jax, which wrote it
            return [InputModule(shown, read_exported(data, shown))]
    if data.startswith(BYTECODE_MAGIC):
        return [InputModule(shown, data, None if name == "-" else name)]
    _check_text(data, shown)
    if marker is None:
        return [InputModule(shown, data, None if name == "-" else name)]
    parts = []
    for line, text in _split(data.decode(), marker, shown, say):
        padded = b"\n" * line + text.encode()
        blank = len(padded) - len(padded.lstrip())
        parts.append(InputModule(shown, padded, first=padded.count(b"\n", 0, blank) + 1))
    return parts


def _check_text(data: bytes, shown: str) -> None:
    if not data.strip():
        message = "the file is empty" if shown != "<stdin>" else "standard input is empty"
        note = Diagnostic(
            "note", f"a module with nothing in it is written `module {{}}`; {JAX_WRITES}", Position(shown)
        )
        raise InputError(Diagnostic("error", message, Position(shown), (note,)))
    bad = data.find(b"\0")
    try:
        data.decode()
    except UnicodeDecodeError as error:
        bad = error.start if bad < 0 else min(bad, error.start)
    if bad >= 0:
        line = data.count(b"\n", 0, bad) + 1
        column = bad - data.rfind(b"\n", 0, bad)
        message = f"neither MLIR text nor bytecode: byte {bad} is 0x{data[bad]:02x}"
        place = Position(shown, line, column)
        raise InputError(Diagnostic("error", message, place, (Diagnostic("note", JAX_WRITES, place),)))


def _split(text: str, marker: str, shown: str, say: Sink) -> Iterator[tuple[int, str]]:
    """The parts between lines that are the marker, and a comment at most, each with the number of lines before it.

    Lines that only begin as it does divide nothing, and are told.
    """
    divides = re.compile(rf"{re.escape(marker)}\s*(//.*)?")
    near = marker[:-_NEAR].rstrip()
    start, line = 0, 0
    for number, found in enumerate(re.finditer(r"^.*\n?", text, flags=re.MULTILINE), 1):
        written = found[0].strip()
        if divides.fullmatch(written):
            yield line, text[start : found.start()]
            line, start = number, found.end()
        elif near and written.startswith(near):
            place = Position(shown, number, found[0].index(near) + 1)
            say(Diagnostic("warning", f"no split here: the line is not just {marker!r}", place))
    yield line, text[start:]
