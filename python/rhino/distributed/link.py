"""A process's connection to the hub, and the thread that ends the process when another one of the job is gone.

Owns asking and telling the others, and how a process ends: on another's failure, its own, or in peace. Knows nothing of
what is asked.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import socket
import sys
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from rhino.distributed.frames import BadFrame, Frame, Reader, encode, watch_host
from rhino.errors import RhinoError, first_line

_WORD_S = 5.0  # how long a process whose communication failed waits to hear which process is the cause
_LAST_S = 10.0  # how long a process that failed may take to end


@dataclass(frozen=True, slots=True)
class Member:
    """One process of the job, as it introduced itself."""

    number: int
    host: str
    pid: int
    about: dict[str, Any]

    def __str__(self) -> str:
        return f"process {self.number} (host {self.host}, pid {self.pid})"


@dataclass(frozen=True, slots=True)
class Group:
    """The processes that gave one answer, by their numbers."""

    value: Any
    processes: tuple[int, ...]


class Link:
    """This process's part in the job.

    Attributes:
      number, count: of this process, and how many there are.
      members: all processes, by number, once `join` returned.
      steps: how many steps of `rhino.parallelize` this process started.
    """

    def __init__(self, number: int, count: int, connection: socket.socket, end_timeout_s: float) -> None:
        self.number = number
        self.count = count
        self.members: tuple[Member, ...] = ()
        self.steps = 0
        self._connection = connection
        self._end_timeout_s = end_timeout_s
        self._replies: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        self._sending = threading.Lock()
        self._ended: dict[int, int] = {}
        self._all_ended = threading.Event()
        # "joining" raises what goes wrong, "running" ends the process.
        self._state = "joining"
        self._refused: BaseException | None = None
        self._failed = False

    # --- joining ----------------------------------------------------------------------------------------------------

    def join(self, about: dict[str, Any]) -> dict[str, Any]:
        """Say who this process is, and wait until all are there. Returns the hub's welcome.

        Raises:
          RhinoError: a process is missing, there twice, gone, or of a job of another size.
        """
        threading.Thread(target=self._listen, name="rhino-watch", daemon=True).start()
        self._send({"kind": "hello", "process": self.number, "count": self.count, "about": about})
        data = self._replies.get().data
        if data["kind"] != "welcome":
            raise RhinoError(f"the job cannot start: {self._why(data)}", "see the output of the processes named")
        self._previous_hook = sys.excepthook
        sys.excepthook = self._excepthook
        atexit.register(self._at_exit)
        return data

    # --- talking ----------------------------------------------------------------------------------------------------

    def ask(self, value: Any, timeout_s: float | None) -> tuple[Group, ...]:
        """What all processes answer to the same question, this one `value`: distinct answers, process 0's first.

        Every process must ask the same questions in the same order. Where one does not within `timeout_s` of the first,
        all end with a message that names it.
        """
        self._send({"kind": "answer", "value": value, "timeout_s": timeout_s})
        groups = self._replies.get().data["groups"]
        return tuple(Group(group["value"], tuple(group["processes"])) for group in groups)

    def share(self, data: dict[str, Any], payload: bytes) -> None:
        """Give something to every other process, which must `receive` it."""
        self._send({"kind": "share", "data": data}, payload)

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """What another process shares. Waits as long as that takes."""
        frame = self._replies.get()
        return frame.data["data"], frame.payload

    def start_step(self) -> None:
        """Count a step that all processes take part in.

        Raises:
          RhinoError: a process has ended, and takes part no more.
        """
        self.steps += 1
        if self._ended:
            cause = self._left_behind()
            if cause:
                raise RhinoError(cause, "every process must run the same steps")

    def refuse(self, error: RhinoError) -> RhinoError:
        """The error, which every process raises at the same place: the others need not be told."""
        self._refused = error
        return error

    # --- the watch --------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        reader = Reader()
        while True:
            try:
                received = self._connection.recv(1 << 20)
                frames = reader.feed(received)
            except (OSError, BadFrame):
                received, frames = b"", []
            for frame in frames:
                self._hear(frame)
            if not received:
                self._hear(Frame({"kind": "no hub"}))
                return

    def _hear(self, frame: Frame) -> None:
        kind = frame.data["kind"]
        if kind == "welcome":
            members = enumerate(frame.data["members"])
            self.members = tuple(Member(k, one["host"], one["pid"], one) for k, one in members)
            self._state = "running"
        if kind in ("welcome", "answers", "share"):
            self._replies.put(frame)
        elif kind == "all ended":
            self._all_ended.set()
        elif kind == "ended":
            self._ended[frame.data["process"]] = frame.data["steps"]
            # Steps that were started cannot be taken back: they wait for the other one.
            cause = self._left_behind()
            if cause and self._state == "running":
                self._send({"kind": "failed", "text": cause})
                self._leave(cause)
        elif self._state == "joining":
            self._replies.put(frame)
        elif self._state == "running" and not self._failed and not self._all_ended.is_set():
            self._leave(self._why(frame.data))
        else:
            self._all_ended.set()  # the end of a process that ends already needs no wait

    def _left_behind(self) -> str:
        for number, steps in sorted(self._ended.items()):
            if steps < self.steps:
                return f"{self._who(number)} ended after {steps} steps, and this process is in its step {self.steps}"
        return ""

    def _why(self, data: dict[str, Any]) -> str:
        kind = data["kind"]
        if kind == "gone":
            return f"{self._who(data['process'])} is gone: killed, crashed, or its host is lost"
        if kind == "failed":
            return f"{self._who(data['process'])} failed: {data['text']}"
        if kind == "refused":
            return str(data["text"])
        if kind == "late":
            late = ", ".join(self._who(number) for number in data["processes"])
            return f"{late} ended" if data["ended"] else f"{late} did not arrive in time where the others wait"
        return f"the coordinator, a child of {self._who(0)}, is gone"

    def _who(self, number: int) -> str:
        return str(self.members[number]) if self.members else f"process {number}"

    # --- the end ----------------------------------------------------------------------------------------------------

    def _leave(self, cause: str) -> None:
        """End this process, whatever its other threads do."""
        _write(f"rhino: {cause}; process {self.number} ends, too")
        _exit()

    def _excepthook(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if self._state == "running" and error is not self._refused and not self._all_ended.is_set():
            if _of_communication(error):
                # Most often another process is the cause; then the watch ends this one, and says so.
                time.sleep(_WORD_S)
            self._failed = True
            self._previous_hook(kind, error, traceback)
            self.fail(f"{kind.__name__}: {first_line(error)}" if str(error).strip() else kind.__name__)
        else:
            self._previous_hook(kind, error, traceback)

    def fail(self, text: str) -> None:
        """Tell the others that this process fails, and why; it then ends soon, whatever still runs in it."""
        self._failed = True
        self._send({"kind": "failed", "text": text})
        timer = threading.Timer(_LAST_S, _exit)
        timer.daemon = True
        timer.start()

    def _at_exit(self) -> None:
        if self._failed:
            # What is registered before this includes jax's wait for the others.
            _exit()
        self._send({"kind": "ended", "steps": self.steps})
        if not self._all_ended.wait(self._end_timeout_s):
            self._send({"kind": "failed", "text": f"it ended {self._end_timeout_s:.0f} s before others"})
            self._leave(f"other processes still run {self._end_timeout_s:.0f} s after process {self.number} ended")
        self._state = "closed"
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _send(self, data: dict[str, Any], payload: bytes = b"") -> None:
        # Where the hub is gone, the watch is what says so.
        with self._sending, contextlib.suppress(OSError):
            self._connection.sendall(encode(Frame(data, payload)))


def connect(
    host: str, port: int, number: int, count: int, timeout_s: float, lost_after_s: int, end_timeout_s: float
) -> Link:
    """Connect to the hub, which may start later than this process.

    Raises:
      RhinoError: it cannot be reached within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            connection = socket.create_connection((host, port), timeout=max(1.0, deadline - time.monotonic()))
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise RhinoError(
                    f"process {number} cannot reach process 0 at {host}:{port} within {timeout_s:.0f} s: "
                    f"{error.strerror or error}",
                    "is process 0 running, and does a firewall let the port pass?",
                ) from None
            time.sleep(0.2)
    connection.settimeout(None)
    watch_host(connection, lost_after_s, to_hub=True)
    return Link(number, count, connection, end_timeout_s)


def _of_communication(error: BaseException | None) -> bool:
    """Whether an error may come from another process's end: XLA's, or one that it caused."""
    while error is not None:
        if type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError"):
            return True
        error = error.__cause__ or error.__context__
    return False


def _write(line: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"{line}\n".encode(errors="replace"))


def _exit() -> None:
    # What was printed must not be lost, but a thread may hold the stream and never let go.
    flushing = threading.Thread(target=_flush, daemon=True)
    try:
        flushing.start()
        flushing.join(1.0)
    except RuntimeError:  # the interpreter ends already: no other thread runs
        _flush()
    os._exit(1)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
