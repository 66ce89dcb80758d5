"""What takes longer than a second says on standard error what it is, where a person watches.

Owns when something is shown and how. Knows nothing of what takes the time.
"""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

QUIET_S = 1.0  # nothing is shown before


class Progress:
    """A line with the time that has passed, and how much is done where that is known; gone when it is over.

    Args:
      what: for people, "compiling train_step".
      quiet: show nothing. Nor is anything shown where standard error is neither a terminal nor a notebook's, or while
        another one is shown.
    """

    def __init__(self, what: str, quiet: bool = False) -> None:
        self._what, self._total, self._done = what, 0, 0
        self._watched = not quiet and _is_watched()
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._bar: Bar | None = None
        self._task: Any = None
        self._over = False

    def __enter__(self) -> Progress:
        if self._watched and _SHOWN.acquire(blocking=False):
            self._timer = threading.Timer(QUIET_S, self._show)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is None:
            return
        self._timer.cancel()
        with self._lock:
            self._over = True
            if self._bar is not None:
                self._bar.stop()
        self._timer = None
        _SHOWN.release()

    def __call__(self, done: int, total: int, label: str) -> None:
        """How far it is: `done` of `total` parts, 0 of 0 where that is not known."""
        if self._timer is None:
            return
        with self._lock:
            self._done, self._total, self._what = done, total, label
            if self._bar is not None:
                self._bar.update(self._task, completed=done, total=total or None, description=label)

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        with self._lock:
            if self._over:
                return
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(self._what, total=self._total or None, completed=self._done)
            self._bar.start()


_SHOWN = threading.Lock()  # two lines at a time would overwrite each other


def _is_watched() -> bool:
    return "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())
