"""Asks a child process for outcomes, and starts another when it dies or hangs.

Owns the child's life. Imports neither jax nor MLIR.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from bench._common import ROOT

ARGV = (sys.executable, "-m", "bench.differential.child")


class Child:
    """One process of `bench.differential.child` at a time.

    Args:
      timeout_s: without an answer for so long it hangs.
      lives: after so many programs it is replaced: what XLA and jax keep of each adds up.
      argv: what to start.
    """

    def __init__(self, timeout_s: float = 180.0, lives: int = 400, argv: Sequence[str] = ARGV) -> None:
        self._timeout_s, self._lives, self._argv = timeout_s, lives, argv
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._asked = 0
        self._read = b""
        self._left: list[str] = []

    def outcomes(self, request: Mapping[str, Any], places: Sequence[str]) -> Iterator[dict[str, Any]]:
        """The outcome of a program at each of the places, in their order: dicts of `trial.Outcome`."""
        self._finish()
        left = self._left = list(places)
        while left:
            process = self._started()
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # its end is told when its answer does not come
                process.stdin.write(json.dumps({**request, "places": left}).encode() + b"\n")
                process.stdin.flush()
            first = self._line()
            while left:
                answer = self._line() if isinstance(first, dict) else first
                if isinstance(answer, dict):
                    left.pop(0)
                    yield answer
                    continue
                said = self._last_words() if answer == "died" else ""
                self.close()
                left.pop(0)
                yield {"kind": answer, "detail": said, "split": 0}
                break

    def _finish(self) -> None:
        """Take the answers that nobody waited for, so that the next ones are not taken for them."""
        if self._process is not None and any(isinstance(self._line(), str) for _ in self._left):
            self.close()
        self._left = []

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self._read = b""

    def _started(self) -> subprocess.Popen[bytes]:
        self._asked += 1
        if self._asked % self._lives == 0:
            self.close()
        if self._process is None:
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115, it lives as long as the process
            environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "1"}
            self._process = subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                cwd=ROOT,
                env=environment,
            )
        return self._process

    def _line(self) -> dict[str, Any] | str:
        """The next answer, or "died" or "hung"."""
        assert self._process is not None and self._process.stdout is not None
        deadline = time.monotonic() + self._timeout_s
        with selectors.DefaultSelector() as ready:
            ready.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._read:
                if not ready.select(max(0.0, deadline - time.monotonic())):
                    return "hung"
                more = os.read(self._process.stdout.fileno(), 65536)
                if not more:
                    return "died"
                self._read += more
        line, _, self._read = self._read.partition(b"\n")
        return json.loads(line)

    def _last_words(self) -> str:
        """What a process that ended said last, its signal first."""
        assert self._process is not None and self._errors is not None
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()
        telling = [line for line in lines if line.startswith("F0") or "ERROR" in line or "Error:" in line]
        name = signal.Signals(-code).name if code < 0 else str(code)
        return f"{name}: {(telling or lines or [''])[-1][:400]}"
