"""A process's part in the job: asking and telling the others, and its end when another one is gone.

Owns the keys that the processes meet at in jax's coordination service, the threads that watch it, and how a process
ends: on another's failure, its own, or in peace. Knows nothing of what is asked.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import hashlib
import json
import os
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn

from jax.errors import JaxRuntimeError

from rhino.compile._jax_processes import Store
from rhino.errors import RhinoError, first_line

_TICK_S = 0.5  # how often the service is asked who lives and who ended
_LAST_S = 10.0  # how long a process that failed may take to end
_LINGER_S = 1.0  # how long process 0 keeps the service for the others to hear why the job ends

_CAUSE = "rhino/cause"
_ENDED = "rhino/ended"


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

    Args:
      service: host and port of jax's coordination service, in process 0.
      lost_after_s: seconds without heartbeats after which the service takes a process for dead.
      end_timeout_s: seconds that this process, when it ends, waits for the others to end.

    Attributes:
      number, count: of this process, and how many there are.
      members: all processes, by number, once `join` returned.
      steps: how many steps of `rhino.parallelize` this process started.
    """

    def __init__(
        self, number: int, count: int, service: tuple[str, int], lost_after_s: float, end_timeout_s: float
    ) -> None:
        self.number = number
        self.count = count
        self.members: tuple[Member, ...] = ()
        self.steps = 0
        self._store = Store()
        self._service = service
        self._lost_after_s = lost_after_s
        self._end_timeout_s = end_timeout_s
        self._asked = 0
        self._awaits = ""  # the folder in which each process's part of what this one waits for appears
        self._ended: dict[int, int] = {}
        self._silent_ticks = 0
        self._closed = False
        self._failed = False
        self._leaving = threading.Lock()
        self._refused: BaseException | None = None

    def join(self, about: dict[str, Any], timeout_s: float) -> None:
        """Say who this process is, hear who the others are, and watch them from here on.

        Args:
          about: with "host" and "pid".
        """
        self._previous_hook = sys.excepthook
        sys.excepthook = self._excepthook
        atexit.register(self._at_exit)
        _delay_aborts()
        for watch in (self._hear, self._hold, self._look, self._mind, self._count_silence):
            threading.Thread(target=watch, name=f"rhino{watch.__name__}", daemon=True).start()
        said = {number: group.value for group in self.ask(about, timeout_s) for number in group.processes}
        self.members = tuple(Member(k, said[k]["host"], said[k]["pid"], said[k]) for k in sorted(said))

    # --- talking ----------------------------------------------------------------------------------------------------

    def ask(self, value: Any, timeout_s: float) -> tuple[Group, ...]:
        """What all processes answer to the same question, this one `value`: distinct answers, process 0's first.

        Every process must ask the same questions in the same order. Where one does not within `timeout_s` of the first,
        all end with a message that names it.
        """
        self._asked += 1
        question = f"rhino/{self._asked}"
        text = json.dumps(value, sort_keys=True)
        name = hashlib.sha256(text.encode()).hexdigest()
        # An answer that many give is stored once.
        self._store.put(f"{question}/answers/{name}", text.encode())
        self._store.put(f"{question}/who/{self.number}", name.encode())
        self._awaits = f"{question}/who"
        met = self._store.meet(question, timeout_s)
        self._awaits = ""
        found = self._store.all(f"{question}/who")
        if not met:
            late = ", ".join(self._who(k) for k in range(self.count) if str(k) not in found)
            self._end(f"{late or 'a process'} did not arrive in time where the others wait")
        if self.number == 0:
            self._store.delete(f"rhino/{self._asked - 1}")  # all have read it: they are here
        processes: dict[str, list[int]] = {}
        for k in sorted(map(int, found)):
            processes.setdefault(found[str(k)].decode(), []).append(k)
        answers = self._store.all(f"{question}/answers")
        return tuple(Group(json.loads(answers[name]), tuple(who)) for name, who in processes.items())

    def share(self, data: dict[str, Any], payload: bytes) -> None:
        """Give something to every other process, which must `receive` it. Once after each question, by process 0."""
        self._store.put(f"rhino/{self._asked}/shared/0", json.dumps(data).encode() + b"\n" + payload)

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """What process 0 shares. Waits as long as that takes."""
        self._awaits = f"rhino/{self._asked}/shared"
        data, _, payload = self._store.get(f"{self._awaits}/0").partition(b"\n")
        self._awaits = ""
        return json.loads(data), payload

    def start_step(self) -> None:
        """Count a step that all processes take part in.

        Raises:
          RhinoError: a process has ended, and takes part no more.
        """
        self.steps += 1
        if cause := self._left_behind():
            raise RhinoError(cause, "every process must run the same steps")

    def refuse(self, error: RhinoError) -> RhinoError:
        """The error, which every process raises at the same place: the others need not be told."""
        self._refused = error
        return error

    # --- the watch --------------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        """Wait for the cause that another process tells, or for the end of the service, which lives in process 0."""
        try:
            cause = self._store.get(_CAUSE).decode()
        except JaxRuntimeError:
            cause = self._gone(0) if self.number else "jax's coordination service has failed"
        if not self._failed:
            self._leave(cause)

    def _hold(self) -> None:
        """Notice the end of process 0 by a silent connection to its port, which the service closes now and then.

        The thread in which XLA aborts where the service ends is the one that would give `_hear` its error.
        """
        while self.number and not self._closed:
            try:
                with socket.create_connection(self._service, timeout=self._lost_after_s) as connection:
                    connection.settimeout(None)
                    while connection.recv(4096):
                        pass
            except ConnectionRefusedError:
                self._leave(self._gone(0))
            except OSError:
                pass  # a host that is lost is silent
            time.sleep(_TICK_S)

    def _look(self) -> None:
        """Ask the service who has no heartbeat."""
        with contextlib.suppress(JaxRuntimeError):  # that is for `_hear`
            while not self._closed:
                live = self._store.live(self.count)
                gone = [k for k in range(self.count) if k not in live]
                if gone and not self._closed:
                    # All processes hear it, and XLA, which ends each now, keeps the client's lock: none can tell.
                    self._leave(" and ".join(self._gone(k) for k in gone))
                time.sleep(_TICK_S)

    def _mind(self) -> None:
        """Ask the service who ended while others still need them, and whether it answers at all."""
        with contextlib.suppress(JaxRuntimeError):
            while not self._closed:
                ended = self._store.all(_ENDED)
                self._silent_ticks = 0
                self._ended = {int(k): int(steps) for k, steps in sorted(ended.items())}
                if cause := self._left_behind() or self._left_waiting():
                    self._end(cause)
                time.sleep(_TICK_S)

    def _count_silence(self) -> None:
        # Ticks, not seconds: while a C extension keeps the interpreter, no thread here counts or hears.
        while not self._closed:
            time.sleep(_TICK_S)
            self._silent_ticks += 1
            if self.number and self._silent_ticks * _TICK_S > 0.7 * self._lost_after_s:
                self._leave(self._gone(0))

    def _left_behind(self) -> str:
        for number, steps in self._ended.items():
            if steps < self.steps:
                return f"{self._who(number)} ended after {steps} steps, and this process is in its step {self.steps}"
        return ""

    def _left_waiting(self) -> str:
        """A process that ended answers no more: the others would wait until their time is over."""
        awaits = self._awaits
        if not awaits or not self._ended:
            return ""
        here = self._store.all(awaits)
        ended = [self._who(k) for k in self._ended if str(k) not in here]
        return f"{', '.join(ended)} ended" if ended and self._awaits == awaits else ""

    def _who(self, number: int) -> str:
        return str(self.members[number]) if self.members else f"process {number}"

    def _gone(self, number: int) -> str:
        return f"{self._who(number)} is gone: killed, crashed, or its host is lost"

    # --- the end ----------------------------------------------------------------------------------------------------

    def _end(self, cause: str) -> NoReturn:
        """End the job. Only the first cause is one: what follows is its consequence."""
        with contextlib.suppress(JaxRuntimeError):
            if not self._store.put(_CAUSE, cause.encode()):
                cause = self._store.get(_CAUSE).decode()
        self._leave(cause)

    def _leave(self, cause: str) -> NoReturn:
        """End this process, whatever its other threads do."""
        self._leaving.acquire()  # for good: another thread that comes here waits for the end
        if self._closed or self._failed:
            threading.Event().wait()
        _write(f"rhino: {cause}; process {self.number} ends, too")
        self._exit()

    def _excepthook(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if error is not self._refused and not self._closed:
            if _of_communication(error):
                # Most often another process is the cause; then the watch ends this one, and says so.
                time.sleep(1.5 * self._lost_after_s)
            self._failed = True
            self._previous_hook(kind, error, traceback)
            self.fail(f"{kind.__name__}: {first_line(error)}" if str(error).strip() else kind.__name__)
        else:
            self._previous_hook(kind, error, traceback)

    def fail(self, text: str) -> None:
        """Tell the others that this process fails, and why; it then ends soon, whatever still runs in it."""
        self._failed = True
        with contextlib.suppress(JaxRuntimeError):
            self._store.put(_CAUSE, f"{self._who(self.number)} failed: {text}".encode())
        timer = threading.Timer(_LAST_S, self._exit)
        timer.daemon = True
        timer.start()

    def _at_exit(self) -> None:
        if self._failed:
            # What is registered before this includes jax's wait for the others.
            self._exit()
        try:
            self._store.put(f"{_ENDED}/{self.number}", str(self.steps).encode())
            met = self._store.meet("rhino/end", self._end_timeout_s)
        except JaxRuntimeError:
            time.sleep(1.5 * self._lost_after_s)  # the watch says why
            self._exit()
        if not met:
            still = [self._who(k) for k in range(self.count) if str(k) not in self._store.all(_ENDED)]
            ended = f"{self._end_timeout_s:.0f} s after others ended"
            self._end(f"{', '.join(still)} still ran {ended}" if still else f"not all processes ended {ended}")
        self._closed = True

    def _exit(self) -> NoReturn:
        # What was printed must not be lost, but a thread may hold the stream and never let go.
        flushing = threading.Thread(target=_flush, daemon=True)
        try:
            flushing.start()
            flushing.join(_LINGER_S)
        except RuntimeError:  # the interpreter ends already: no other thread runs
            _flush()
        if self.number == 0:
            # The others hear the cause from the service. What XLA writes meanwhile is a stack trace.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            time.sleep(_LINGER_S)
        os._exit(1)


def _delay_aborts() -> None:
    """Let an abort of this process wait some seconds, so that a thread that knows the cause can say it first.

    Where the service is gone, or tells of a process that is, XLA aborts from a thread of its own with a stack trace,
    which does not name process 0; jaxlib 0.10.2 dies where it is given a callback in Python instead. The handler is C's
    `sleep`, which needs no interpreter and takes the signal's number for seconds: SIGABRT is 6.
    """
    if signal.getsignal(signal.SIGABRT) is signal.SIG_DFL:
        libc = ctypes.CDLL(None)
        libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
        libc.signal(signal.SIGABRT, ctypes.cast(libc.sleep, ctypes.c_void_p))


def _of_communication(error: BaseException | None) -> bool:
    """Whether an error may come from another process's end: XLA's, or one that it caused; but not one of memory."""
    while error is not None:
        if isinstance(error, JaxRuntimeError) and not str(error).startswith("RESOURCE_EXHAUSTED"):
            return True
        error = error.__cause__ or error.__context__
    return False


def _write(line: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"{line}\n".encode(errors="replace"))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
