"""Where the processes of a job meet: who is there, what all of them say to a question, who ended and how.

Owns the state of the job's membership. Runs in a process of its own, so that it outlives every one of them and is never
held up by what they compute. Knows neither jax nor what the processes ask each other.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rhino.distributed.frames import BadFrame, Frame, Reader, encode, watch_host


@dataclass(slots=True)
class _Peer:
    """One connection. `number` is None until it said who it is; `state` is "here", "ended" or "failed"."""

    connection: socket.socket
    reader: Reader = field(default_factory=Reader)
    number: int | None = None
    about: dict[str, Any] = field(default_factory=dict)
    state: str = "here"
    asked: int = 0
    waiting: bytearray = field(default_factory=bytearray)


@dataclass(slots=True)
class _Question:
    """What the processes were asked together, and the answers so far."""

    deadline: float | None
    answers: dict[int, Any] = field(default_factory=dict)


class Hub:
    """Serves the connections of `count` processes.

    Args:
      listener: where they connect.
      count: how many there should be.
      timeout_s: how long to wait for all of them.
      lost_after_s: after how long without an answer a host counts as lost.
      welcome: what each is told when all are there.
    """

    def __init__(
        self, listener: socket.socket, count: int, timeout_s: float, lost_after_s: int, welcome: dict[str, Any]
    ) -> None:
        self._listener = listener
        self._count = count
        self._lost_after_s = lost_after_s
        self._welcome = welcome
        self._deadline: float | None = time.monotonic() + timeout_s
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._peers: list[_Peer] = []
        self._members: dict[int, _Peer] = {}
        self._questions: dict[int, _Question] = {}
        self._cause: dict[str, Any] | None = None

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._peers)

    def watch(self, file: Any, ready: Callable[[], None]) -> None:
        """Call `ready` whenever something can be read from `file`."""
        self._selector.register(file, selectors.EVENT_READ, ready)

    def unwatch(self, file: Any) -> None:
        """Stop watching it."""
        self._selector.unregister(file)

    def serve(self, seconds: float) -> None:
        """Handle what comes within this time."""
        for key, events in self._selector.select(seconds):
            if key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.data, _Peer):
                if events & selectors.EVENT_WRITE:
                    self._flush(key.data)
                if events & selectors.EVENT_READ:
                    self._read(key.data)
            else:
                key.data()
        self._check_deadlines()

    # --- connections ------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # it gave up before it was accepted
        watch_host(connection, self._lost_after_s, to_hub=False)
        connection.setblocking(False)
        peer = _Peer(connection)
        self._peers.append(peer)
        self._selector.register(connection, selectors.EVENT_READ, peer)

    def _read(self, peer: _Peer) -> None:
        try:
            received = peer.connection.recv(1 << 20)
            frames = peer.reader.feed(received)
        except BlockingIOError:
            return
        except (OSError, BadFrame):
            received, frames = b"", []
        for frame in frames:
            self._handle(peer, frame)
        if not received:
            self._drop(peer)

    def _send(self, peer: _Peer, data: dict[str, Any], payload: bytes = b"") -> None:
        peer.waiting += encode(Frame(data, payload))
        self._flush(peer)

    def _flush(self, peer: _Peer) -> None:
        if peer not in self._peers:
            return
        # A connection that is broken is found so, and dropped, when it is read.
        with contextlib.suppress(OSError):
            while peer.waiting:
                sent = peer.connection.send(peer.waiting[: 1 << 20])
                del peer.waiting[:sent]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.waiting else 0)
        self._selector.modify(peer.connection, events, peer)

    def _tell(self, data: dict[str, Any], payload: bytes = b"", besides: _Peer | None = None) -> None:
        for peer in [*self._members.values()]:
            if peer is not besides:
                self._send(peer, data, payload)

    def _drop(self, peer: _Peer) -> None:
        if peer not in self._peers:
            return
        self._peers.remove(peer)
        self._selector.unregister(peer.connection)
        peer.connection.close()
        if peer.number is None or self._members.get(peer.number) is not peer:
            return
        if peer.state == "here" or (peer.state == "ended" and not self._all_ended()):
            self._stop({"kind": "gone", "process": peer.number}, besides=peer)

    def _stop(self, cause: dict[str, Any], besides: _Peer | None = None) -> None:
        """Tell everyone why the job stops. Only the first cause is one: what follows is its consequence."""
        if self._cause is None:
            self._cause = cause
            self._tell(cause, besides=besides)

    # --- what they say ----------------------------------------------------------------------------------------------

    def _handle(self, peer: _Peer, frame: Frame) -> None:
        data = frame.data
        kind = data.get("kind")
        if kind == "hello":
            self._hello(peer, data)
        elif peer.number is None:
            self._drop(peer)
        elif kind == "answer":
            self._answer(peer, data)
        elif kind == "share":
            self._tell(data, frame.payload, besides=peer)
        elif kind == "failed":
            peer.state = "failed"
            self._stop({"kind": "failed", "process": peer.number, "text": data["text"]}, besides=peer)
        elif kind == "ended":
            peer.state = "ended"
            self._tell({"kind": "ended", "process": peer.number, "steps": data["steps"]}, besides=peer)
            if self._all_ended():
                self._tell({"kind": "all ended"})
            for question in self._questions.values():
                self._check_ended(question)

    def _all_ended(self) -> bool:
        return len(self._members) == self._count and all(p.state == "ended" for p in self._members.values())

    def _hello(self, peer: _Peer, data: dict[str, Any]) -> None:
        number, count, about = data["process"], data["count"], data["about"]
        peer.about = about
        if self._cause is not None:
            self._send(peer, self._cause)
        elif count != self._count:
            where = _who(number, about)
            self._refuse(f"{where} was started for {count} processes, and process 0 for {self._count}", peer)
        elif number in self._members:
            first, second = _at(self._members[number].about), _at(about)
            self._refuse(f"process {number} was started twice: {first} and {second}", peer)
        else:
            peer.number = number
            self._members[number] = peer
            if len(self._members) == self._count:
                self._deadline = None
                abouts = [self._members[k].about for k in range(self._count)]
                self._tell({"kind": "welcome", "members": abouts, **self._welcome})

    def _refuse(self, text: str, newcomer: _Peer | None = None) -> None:
        cause = {"kind": "refused", "text": text}
        if self._cause is None and newcomer is not None:
            self._send(newcomer, cause)
        self._stop(cause)

    def _answer(self, peer: _Peer, data: dict[str, Any]) -> None:
        assert peer.number is not None
        index = peer.asked
        peer.asked += 1
        timeout_s = data["timeout_s"]
        question = self._questions.setdefault(index, _Question(None))
        if not question.answers and timeout_s is not None:
            question.deadline = time.monotonic() + timeout_s
        question.answers[peer.number] = data["value"]
        if len(question.answers) == self._count:
            del self._questions[index]
            self._tell({"kind": "answers", "groups": _groups(question.answers)})
        else:
            self._check_ended(question)

    def _check_ended(self, question: _Question) -> None:
        """A process that ended answers no more: the others would wait for ever."""
        missing = self._missing(question.answers)
        ended = [n for n in missing if n in self._members and self._members[n].state == "ended"]
        if ended:
            self._stop({"kind": "late", "processes": ended, "ended": True})

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        if self._deadline is not None and now > self._deadline:
            self._deadline = None
            self._refuse(f"{_processes(self._missing(self._members))} did not connect in time")
        for question in self._questions.values():
            if question.deadline is not None and now > question.deadline:
                question.deadline = None
                self._stop({"kind": "late", "processes": self._missing(question.answers), "ended": False})

    def _missing(self, present: dict[int, Any]) -> list[int]:
        return [number for number in range(self._count) if number not in present]


def _groups(answers: dict[int, Any]) -> list[dict[str, Any]]:
    """The distinct answers, each with the processes that gave it; that of process 0 first."""
    groups: list[dict[str, Any]] = []
    for number in sorted(answers):
        for group in groups:
            if group["value"] == answers[number]:
                group["processes"].append(number)
                break
        else:
            groups.append({"value": answers[number], "processes": [number]})
    return groups


def _at(about: dict[str, Any]) -> str:
    return f"host {about.get('host')}, pid {about.get('pid')}"


def _who(number: int, about: dict[str, Any]) -> str:
    return f"process {number} ({_at(about)})"


def _processes(numbers: list[int]) -> str:
    return ("process " if len(numbers) == 1 else "processes ") + ", ".join(map(str, numbers))
