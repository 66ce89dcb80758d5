"""Starts Python programs as forks of a server that has imported what they import, which takes longer than most run.

What is started is a process like any other, with its own pid, files, environment and end; only modules are there, and
strings hash alike in all forks of one server. `warm_server.py` is the other side. As a program, quick to start:

    python -IS warm.py SOCKET ARGUMENT ...     does what `python ARGUMENT ...` does, by the server at SOCKET
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

TYPE_CHECKING = False  # `typing` takes longer to import than the rest
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SERVER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "warm_server.py")


def serve(folder: str, modules: Iterable[str], env: Mapping[str, str] | None = None) -> str:
    """Start a server with these modules, which ends when this process and its forks have; returns its socket's path.

    Args:
      folder: for the socket, so its path must be short; the server removes it.
      modules: what to import. None of them may start a thread or a back end.
      env: its environment; this process's where missing. Forks have their own, but see `EARLY` of the server.
    """
    import subprocess

    address = os.path.join(folder, "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        ends, _held = os.pipe()  # nothing is written; the server wakes when all processes with the other end are gone
        number = listener.fileno()
        subprocess.Popen(
            [sys.executable, SERVER, folder, str(number), *modules], env=env, stdin=ends, pass_fds=[number]
        ).returncode = 0  # it outlives the object, which is to say nothing about that
        os.close(ends)
    return address


class Forked:
    """A program that runs as a fork of a server. Letting go of this object kills it."""

    def __init__(
        self, address: str, arguments: Sequence[str], files: Sequence[int], env: Mapping[str, str] | None = None
    ) -> None:
        """Start it.

        Args:
          address: the server's socket.
          arguments: those of the `python` that it does the work of.
          files: its standard input, output and error.
          env: its environment; this process's where missing.
        """
        self.returncode: int | None = None
        self._server = socket.socket(socket.AF_UNIX)
        self._server.connect(address)
        request = json.dumps([list(arguments), dict(os.environ if env is None else env), os.getcwd()]).encode()
        socket.send_fds(self._server, [len(request).to_bytes(8, "big")], files)
        self._server.sendall(request)
        self.pid = self._answer()

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; of a process that a signal ended, its negative number. Raises TimeoutError."""
        if self.returncode is None:
            self._server.settimeout(timeout)
            self.returncode = self._answer()
            self._server.close()
        return self.returncode

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def _answer(self) -> int:
        data = self._server.recv(8, socket.MSG_WAITALL)
        if len(data) < 8:
            raise RuntimeError("the server of forks has ended; what it said is in the output of who started it")
        return int.from_bytes(data, "big", signed=True)


def main() -> int:
    address, *arguments = sys.argv[1:]
    try:
        code = Forked(address, arguments, (0, 1, 2)).wait()
    except (FileNotFoundError, ConnectionRefusedError):  # a line that somebody copied from lit's output
        os.execv(sys.executable, [sys.executable, *arguments])
    if code < 0:
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main())
