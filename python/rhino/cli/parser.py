"""The parser of the `rhino` commands: argparse, whose errors here are one line with what to write instead.

Owns these messages; a command gives its example as `epilog`. Knows no command.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from rhino.errors import nearest

_CHOICE = re.compile(r"(?P<what>.*): invalid choice: '(?P<given>[^']*)' \(choose from (?P<known>.*)\)")


class Parser(argparse.ArgumentParser):
    """argparse's parser, also of each subcommand; it exits with 2 after an error, as argparse does."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._flags: list[str] = []  # first: argparse adds --help at once
        self._has_commands = False
        super().__init__(*args, **options)

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        """As argparse's; the names of options are remembered, for errors."""
        self._flags += [name for name in names if name.startswith("--")]
        return super().add_argument(*names, **options)

    def add_subparsers(self, **options: Any) -> Any:
        """As argparse's."""
        self._has_commands = True
        return super().add_subparsers(**options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As argparse's, but a command refuses what it does not know itself, so that the error is about its options."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown and not self._has_commands:
            self._refuse(unknown)
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Print the error in one line, with the way on, and exit with 2."""
        choice = _CHOICE.fullmatch(message)
        if choice:
            known = [word.strip(" '") for word in choice["known"].split(",")]
            what = choice["what"].removeprefix("argument ")
            if what in ("COMMAND", "ACTION"):
                self._exit(f"no {what.lower()} '{choice['given']}'", self._nearest(choice["given"], known))
            message = f"{what} is '{choice['given']}' but must be one of {', '.join(known)}"
            self._exit(message, self._nearest(choice["given"], known, ""))
        if message.startswith("the following arguments are required: "):
            self._exit(message.replace("the following arguments are required: ", "missing "), self.epilog or "")
        self._exit(message.removeprefix("argument "), self._see())

    def _refuse(self, unknown: Sequence[str]) -> NoReturn:
        first = unknown[0].partition("=")[0]
        if first.startswith("-"):
            self._exit(f"no option {first}", self._nearest(first, self._flags))
        self._exit(f"one argument too many: {first}", self.epilog or "")

    def _nearest(self, given: str, known: Sequence[str], otherwise: str | None = None) -> str:
        near = nearest(given, known)
        return f"did you mean {near}?" if near else self._see() if otherwise is None else otherwise

    def _see(self) -> str:
        return f"see {self.prog} --help"

    def _exit(self, message: str, remedy: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}{'; ' if remedy else ''}{remedy}\n")
