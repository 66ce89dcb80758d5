"""A process's part in the job: asking and telling the others, and its end when another one is gone.

Owns the keys that the processes meet at in jax's coordination service, the thread that hears of the others' end, and
how a process ends: on another's failure, its own, or in peace. Knows nothing of what is asked.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import queue
import socket
import sys
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn

from jax.errors import JaxRuntimeError

from rhino.compile._jax_processes import Store
from rhino.distributed.watch import MISSES, Lines, Watch, acknowledged_within, line, ping_s
from rhino.errors import RhinoError, first_line

_WORD_S = 1.0  # how long a process that failed waits to hear that another one is the cause
_LAST_S = 10.0  # how long a process that failed may take to end
_FLUSH_S = 1.0

_TOKEN = "rhino/token"


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
      connection: to process 0's watch.
      watch: that watch, in process 0.
      lost_after_s: seconds without any sign of a host after which its processes count as dead.
      end_timeout_s: seconds that this process, when it ends, waits for the others to end.

    Attributes:
      number, count: of this process, and how many there are.
      members: all processes, by number, once `join` returned.
      steps: how many steps of `rhino.parallelize` this process started.
      stops: why the job cannot start, once the watch says so; until `join` this ends nothing.
    """

    def __init__(
        self,
        number: int,
        count: int,
        connection: socket.socket,
        watch: Watch | None,
        lost_after_s: float,
        end_timeout_s: float,
    ) -> None:
        self.number = number
        self.count = count
        self.members: tuple[Member, ...] = ()
        self.steps = 0
        self.stops: queue.SimpleQueue[str | Exception | None] = queue.SimpleQueue()
        self._connection = connection
        self._watch = watch
        self._lost_after_s = lost_after_s
        self._end_timeout_s = end_timeout_s
        self._sending = threading.Lock()
        self._joined = False
        self._asked = 0
        self._awaits = ""  # the folder in which each process's part of what this one waits for appears
        self._ended: dict[int, int] = {}
        self._slow: list[int] = []
        self._closed = False
        self._failed = False
        self._leaving = threading.Lock()
        self._refused: BaseException | None = None
        connection.settimeout(ping_s(lost_after_s))
        acknowledged_within(connection, 0.75 * lost_after_s)
        threading.Thread(target=self._listen, name="rhino-link", daemon=True).start()

    def join(self, about: dict[str, Any], timeout_s: float) -> None:
        """Say who this process is, hear who the others are, and end from here on when one of them is gone.

        Args:
          about: with "host" and "pid".
        """
        self._previous_hook = sys.excepthook
        sys.excepthook = self._excepthook
        atexit.register(self._at_exit)
        self._store = Store()
        if self._watch:
            self._store.put(_TOKEN, self._watch.token.encode())
        self._send("token", self._store.get(_TOKEN).decode())
        self._joined = True
        while not self.stops.empty():
            self._leave(str(self.stops.get()))
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
        if cause := self._left_waiting():
            self._end(cause)
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
        if cause := self._left_waiting():
            self._end(cause)
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

    # --- hearing ----------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        lines, silent = Lines(), 0
        while True:
            try:
                received = self._connection.recv(1 << 12)
                for text in lines.feed(received):
                    self._hear(text)
            except TimeoutError:
                # Counted, since while C++ keeps the interpreter nobody hears; and jax's service answers even then.
                silent += 1
                if silent >= MISSES and self.number and self._joined and not self._closed:
                    if not self._store.answers(_TOKEN, 0.15 * self._lost_after_s):
                        self._hear(f"stop {self._who(0)} does not answer: frozen, or its host is lost")
                    silent = 0
                continue
            except (OSError, ValueError):
                received = b""
            silent = 0
            if not received:
                self._hear(f"stop {self._who(0)} is gone: killed, crashed, or its host is lost")
                return

    def _hear(self, text: str) -> None:
        word, _, rest = text.partition(" ")
        if word == "ping":
            self._send("pong")
        elif word == "stop":
            self.stops.put(rest)
            if self._joined:
                self._leave(rest)
        elif word == "ended":
            number, steps = map(int, rest.split())
            self._ended[number] = steps
            if cause := self._left_behind() or self._left_waiting():
                self._send("stop", cause)
        elif word == "slow" and int(rest) != self.number:
            self._slow.append(int(rest))
            _write(
                f"rhino: {self._who(int(rest))} does not answer: frozen, its host is lost, or C++ keeps its interpreter"
                "; jax's service ends the job if its heartbeats are missing, too"
            )
        elif word == "back" and int(rest) in self._slow:
            self._slow.remove(int(rest))
            _write(f"rhino: {self._who(int(rest))} answers again")

    def _left_behind(self) -> str:
        for number, steps in sorted(self._ended.items()):
            if steps < self.steps:
                return f"{self._who(number)} ended after {steps} steps, and this process is in its step {self.steps}"
        return ""

    def _left_waiting(self) -> str:
        """A process that ended answers no more: the others would wait until their time is over."""
        awaits = self._awaits
        if not awaits or not self._ended:
            return ""
        try:
            here = self._store.all(awaits)
        except JaxRuntimeError:  # the service is gone, and with it process 0, which is heard of
            return ""
        only = [0] if awaits.endswith("/shared") else range(self.count)
        ended = [self._who(k) for k in sorted(self._ended) if k in only and str(k) not in here]
        return f"{', '.join(ended)} ended" if ended and self._awaits == awaits else ""

    def _who(self, number: int) -> str:
        return str(self.members[number]) if self.members else f"process {number}"

    # --- the end ----------------------------------------------------------------------------------------------------

    def _end(self, cause: str) -> NoReturn:
        """End the job. Only the first cause is one: what follows is its consequence."""
        self._send("stop", cause)
        time.sleep(_LAST_S)  # the watch tells the first to all
        self._leave(cause)

    def _leave(self, cause: str) -> NoReturn:
        """End this process, whatever its other threads do."""
        self._leaving.acquire()  # for good: another thread that comes here waits for the end
        if self._closed or self._failed:
            threading.Event().wait()
        slow = ", ".join(self._who(k) for k in self._slow)
        # XLA aborts all for want of one's heartbeats: those it aborted are gone, but the cause is the one.
        before = f"{slow} did not answer, then " if slow else ""
        _write(f"rhino: {before}{cause}; process {self.number} ends, too")
        self._exit()

    def _excepthook(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        self._previous_hook(kind, error, traceback)
        if error is not self._refused and not self._closed:
            # Where another process is the cause, and not only if the error says so, the watch ends this one.
            time.sleep(_WORD_S)
            self.fail(f"{kind.__name__}: {first_line(error)}" if str(error).strip() else kind.__name__)

    def fail(self, text: str) -> None:
        """Tell the others that this process fails, and why; it then ends soon, whatever still runs in it."""
        self._failed = True
        self._send("failed", text)
        timer = threading.Timer(_LAST_S, self._exit)
        timer.daemon = True
        timer.start()

    def _at_exit(self) -> None:
        if self._failed:
            # What is registered before this includes jax's wait for the others.
            self._exit()
        self._send("ended", self.steps)
        try:
            met = self._store.meet("rhino/end", self._end_timeout_s)
        except JaxRuntimeError:
            time.sleep(self._lost_after_s)  # the watch, or XLA, says why
            self._exit()
        if not met:
            still = ", ".join(self._who(k) for k in range(self.count) if k not in self._ended)
            self._end(f"{still or 'a process'} still ran {self._end_timeout_s:.0f} s after others ended")
        self._closed = True

    def _exit(self) -> NoReturn:
        # What was printed must not be lost, but a thread may hold the stream and never let go.
        flushing = threading.Thread(target=_flush, daemon=True)
        try:
            flushing.start()
            flushing.join(_FLUSH_S)
        except RuntimeError:  # the interpreter ends already: no other thread runs
            _flush()
        # With jax's service XLA aborts who is still here; one whose interpreter is kept it ends by the heartbeats.
        if self._watch:
            self._watch.outlast(self._lost_after_s + 8)
        os._exit(1)

    def _send(self, *words: object) -> None:
        # Where the connection is broken, the thread that listens says so.
        with self._sending, contextlib.suppress(OSError):
            self._connection.sendall(line(*words))


def _write(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode(errors="replace"))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
