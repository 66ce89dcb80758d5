"""Runs a command in a child process, so that C++ code which ends its process leaves one line and exit code 1.

Owns the fork, and what C++ writes to file descriptor 2 (Python's sys.stderr goes past it). MLIR's and XLA's checks
abort, and no Python runs in a process after that. It forks before anything large is loaded.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from typing import NoReturn

from rhino.passes.stderr import epitaph

_TASK_BYTES = 1024
_ENDING = (signal.SIGTERM, signal.SIGHUP)


class _Shared:
    """What the child and its parent share: the task named last, what C++ wrote, and how much of that is shown."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8 + _TASK_BYTES)
        self.said = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as both processes live)

    @property
    def task(self) -> str:
        return self._memory[8:].split(b"\0", 1)[0].decode(errors="replace")

    @task.setter
    def task(self, text: str) -> None:
        raw = text.encode()[: _TASK_BYTES - 1] + b"\0"
        self._memory[8 : 8 + len(raw)] = raw

    def unread(self) -> bytes:
        """What C++ code has written since the last call, in either process."""
        shown, size = int.from_bytes(self._memory[:8], "little"), os.fstat(self.said.fileno()).st_size
        self._memory[:8] = size.to_bytes(8, "little")
        return os.pread(self.said.fileno(), size - shown, shown)


_shared: list[_Shared] = []  # with the parent, in a supervised child


def task(text: str) -> None:
    """Name what is done from now on, for the message if it ends the process."""
    for shared in _shared:
        shared.task = text


def show_native() -> None:
    """Show what C++ code has written to standard error so far, in its place among Python's messages."""
    for shared in _shared:
        _show(shared.unread())


def supervised(name: str, run: Callable[[], int], verbose: bool = False) -> int:
    """Call `run` in a child process and return its exit code; 1, after one line, if something ended the process.

    Args:
      name: the command, first in that line.
      run: what to do; returns the exit code.
      verbose: show all that C++ code said at its end, such as the stack.
    """
    if not hasattr(os, "fork"):
        return run()
    sys.stdout.flush()
    sys.stderr.flush()
    shared = _Shared()
    # What ends this process before its handlers are there would leave the child behind.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        child = os.fork()
    except OSError:  # no process to be had: work unsupervised
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return run()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _work(shared, run)
    before = {number: signal.signal(number, lambda n, _: os.kill(child, n)) for number in _ENDING}
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    # Ctrl-C reaches both; the child says what there is to say.
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _, status = os.waitpid(child, 0)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    code = os.waitstatus_to_exitcode(status)
    said = shared.unread()
    if code >= 0:
        _show(said)
        return code
    if -code in (*_ENDING, signal.SIGINT, signal.SIGPIPE):  # somebody wanted it to end
        return 128 - code
    text = said.decode(errors="replace")
    before_end, message = epitaph(-code, text)
    # What came before may be wanted: dumps of the IR before the pass that ended it.
    shown = text if verbose else before_end
    if shown and not shown.endswith("\n"):
        shown += "\n"
    _show(shown.encode())
    print(f"{name}: error: {shared.task + ': ' if shared.task else ''}{message}", file=sys.stderr)
    return 1


def _work(shared: _Shared, run: Callable[[], int]) -> NoReturn:
    """The child: standard error as Python sees it stays, as C++ sees it becomes the shared file."""
    encoding = sys.stderr.encoding
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, encoding=encoding, errors="backslashreplace")
    os.dup2(shared.said.fileno(), 2)
    _shared.append(shared)
    sys.exit(run())


def _show(data: bytes) -> None:
    if data:
        sys.stderr.flush()
        sys.stderr.buffer.write(data)
        sys.stderr.flush()
