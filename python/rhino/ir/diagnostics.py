"""Diagnostics as plain data: errors, warnings, remarks and notes with a source position, from C++ and Python passes.

Owns their shape, how MLIR locations become positions, and PassLog, the channel a pass writes to. Knows nothing of
printing. MLIR's own diagnostics cannot be created from Python except as errors, hence this second, wider channel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from rhino.errors import RhinoError, first_line
from rhino.ir.session import ALONE, Session

if TYPE_CHECKING:  # reading the registry for --help must not load jaxlib
    from jaxlib.mlir import ir

Where: TypeAlias = "ir.Operation | ir.OpView | ir.Location | ir.Module | Position"
# How MLIR begins a note with the whole operation, everything in it included.
CURRENT_OPERATION = "see current operation: "


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a source file, 1-based; line 0 means the file as a whole."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{max(self.line, 1)}:{max(self.column, 1)}"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One message; `severity` is error, warning, remark or note; `notes` belong to it and follow it in print."""

    severity: str
    message: str
    position: Position
    notes: tuple[Diagnostic, ...] = ()

    def __str__(self) -> str:
        return f"{self.position}: {self.severity}: {self.message}"


Sink: TypeAlias = Callable[[Diagnostic], None]
# Runs passes, given as objects or as text, on a module.
Pipeline: TypeAlias = "Callable[[Sequence[Any], ir.Module, Session], None]"


def position_of(where: Where) -> Position:
    """The file position an operation or location stands for (`rhino.dialect.locations.file_location`).

    A location without any file (MLIR's `unknown`) gives the position `<unknown>`.
    """
    if isinstance(where, Position):
        return where
    from jaxlib.mlir import ir

    from rhino.dialect.locations import file_location

    if isinstance(where, ir.Module):
        where = where.operation
    location = where if isinstance(where, ir.Location) else where.location
    found = file_location(location)
    return Position("<unknown>") if found is None else Position(found.filename, found.start_line, found.start_col)


def from_mlir(diagnostic: ir.Diagnostic) -> Diagnostic:
    """A copy of a diagnostic of the C++ side, which lives only as long as its handler runs."""
    try:
        message = diagnostic.message
    except (RuntimeError, UnicodeDecodeError):  # it quotes damaged bytecode
        message = "damaged: a name in it is no text"
    return Diagnostic(
        diagnostic.severity.name.lower(),
        message,
        position_of(diagnostic.location),
        tuple(from_mlir(note) for note in diagnostic.notes),
    )


class PassError(RhinoError):
    """The error a pass raises to stop at an operation.

    Args:
      where: the operation (or location) at fault.
      message: lower-case sentence naming both values that disagree.
      notes: remedies, or (operation, message) pairs that point elsewhere.
    """

    def __init__(self, where: Where, message: str, notes: Sequence[str | tuple[Where, str]] = ()) -> None:
        super().__init__(message)
        self.diagnostic = make_diagnostic("error", where, message, notes)

    @classmethod
    def of(cls, diagnostic: Diagnostic) -> PassError:
        """The error that a diagnostic tells."""
        error = cls(diagnostic.position, diagnostic.message)
        error.diagnostic = diagnostic
        return error


@contextmanager
def errors_at(where: Where) -> Iterator[None]:
    """Has what goes wrong while the block runs be an error at an operation, unless it has a place already."""
    try:
        yield
    except PassError:
        raise
    except RhinoError as error:
        raise PassError(where, error.message, [error.remedy] if error.remedy else []) from error


def make_diagnostic(
    severity: str, where: Where, message: str, notes: Sequence[str | tuple[Where, str]] = ()
) -> Diagnostic:
    """A diagnostic at an operation; a note given as a bare string is placed at the same operation."""
    position = position_of(where)
    attached = []
    for note in notes:
        at, text = (position, note) if isinstance(note, str) else (position_of(note[0]), note[1])
        attached.append(Diagnostic("note", text, at))
    return Diagnostic(severity, message, position, tuple(attached))


class PassLog:
    """What one run of one pass says: diagnostics, statistics, and the operation it is busy with.

    `session` is that of the whole run. `pipeline` runs other passes on the module, with a session; the pass manager
    that runs this one gives it. A pass that left the module as it was says so by `unchanged`: it is not verified again.

    A pass reports many errors with `error` and returns, or stops at the first by raising PassError.
    """

    def __init__(self, sink: Sink, where: Where, session: Session = ALONE, pipeline: Pipeline | None = None) -> None:
        self._sink = sink
        self.session = session
        self.pipeline = pipeline
        self._here: list[Where] = [where]
        self._blamed: tuple[BaseException, Where] | None = None
        self.statistics: dict[str, int] = {}
        self.failed = False
        self.unchanged = False

    def count(self, name: str, n: int = 1) -> None:
        """Add `n` to the statistic `name`, shown by --mlir-pass-statistics."""
        self.statistics[name] = self.statistics.get(name, 0) + n

    def error(self, where: Where, message: str, notes: Sequence[str | tuple[Where, str]] = ()) -> None:
        """Report an error and go on; the pass counts as failed when it returns."""
        self.failed = True
        self._sink(make_diagnostic("error", where, message, notes))

    def warning(self, where: Where, message: str, notes: Sequence[str | tuple[Where, str]] = ()) -> None:
        """Report something the user should change, though the pass can go on."""
        self._sink(make_diagnostic("warning", where, message, notes))

    def remark(self, where: Where, message: str, notes: Sequence[str | tuple[Where, str]] = ()) -> None:
        """Report a decision and its reason."""
        self._sink(make_diagnostic("remark", where, message, notes))

    def note(self, where: Where, message: str) -> None:
        """Report a detail that belongs to no other message."""
        self._sink(make_diagnostic("note", where, message))

    @contextmanager
    def at(self, where: Where) -> Iterator[None]:
        """Name the operation being processed: an exception inside becomes an error at it."""
        # The location, not the operation: it stays valid when the operation is erased.
        self._here.append(where.location if hasattr(where, "location") else where)
        try:
            yield
        except Exception as error:
            if self._blamed is None or self._blamed[0] is not error:
                self._blamed = (error, self._here[-1])
            raise
        finally:
            self._here.pop()

    def blame(self, error: BaseException) -> Where:
        """Where `error` was raised: the innermost `at` it left, or the module."""
        return self._blamed[1] if self._blamed and self._blamed[0] is error else self._here[-1]


def describe_exception(error: Exception) -> tuple[str, list[Any]]:
    """The message and notes under which an exception inside a pass is shown to the user."""
    if isinstance(error, RhinoError):
        return error.message, [error.remedy] if error.remedy else []
    text = first_line(error)
    return (
        f"unexpected {type(error).__name__}" + (f": {text}" if str(error).strip() else ""),
        ["this is a bug in the pass; --debug shows where it happened"],
    )
