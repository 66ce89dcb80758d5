"""What C++ code writes to the process's standard error, which Python's sys.stderr never sees: caught, and read.

Owns the file descriptor juggling, for calls that cannot abort the process (an abort would lose the text), and the
sentence that is made of the last words of a process that ended.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

# The line from which on a C++ process says nothing but that it dies, and where.
_LAST_WORDS = re.compile(
    r"^(?:F\d{4} |LLVM ERROR:|\*\*\* |Fatal Python error|.*Assertion .* failed|terminate called|PLEASE submit a bug"
    r"|Stack dump|libc\+\+abi|free\(\)|double free|malloc|corrupted)",
    re.MULTILINE,
)
_LOG_PREFIX = re.compile(r"^(?:LLVM ERROR: )?(?:F\d{4} [\d:.]+ +\d+ \S+\] )?(?:\*\*\* )?")


def epitaph(number: int, said: str) -> tuple[str, str]:
    """What a process that signal `number` ended wrote before that, and one line on its end: why, as far as it said."""
    end = _LAST_WORDS.search(said)
    start = end.start() if end else len(said)
    name = signal.Signals(number).name
    if number == signal.SIGKILL:
        return said[:start], f"the process was killed ({name}), as systems do when memory runs out"
    lines = said[start:].splitlines()
    reason = _LOG_PREFIX.sub("", lines[0]).strip()[:300] if lines else ""
    return said[:start], f"C++ code ended the process ({name})" + (f": {reason}" if reason else "")


@dataclass(slots=True)
class Captured:
    """The text written, complete when the block has ended."""

    text: str = ""


@contextmanager
def captured_stderr() -> Iterator[Captured]:
    """Redirect file descriptor 2 into the yielded object for the duration of the block."""
    captured = Captured()
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield captured
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            captured.text = file.read().decode(errors="replace")
