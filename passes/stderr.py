"""Catches what C++ code writes to the process's standard error, which Python's sys.stderr never sees.

Owns the file descriptor juggling. Used around calls that cannot abort the process, because an abort would lose the
text.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


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
