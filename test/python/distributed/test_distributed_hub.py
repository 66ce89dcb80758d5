"""The hub by itself: who is missing or late, answers of all, strangers that speak otherwise. No jax, no processes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rhino.distributed.frames import BadFrame, Frame, Reader, encode
from rhino.distributed.hub import Hub


class Client:
    """A process, as the hub sees it."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.reader = Reader()
        self.frames: list[Frame] = []

    def send(self, data: dict[str, Any], payload: bytes = b"") -> None:
        self.socket.sendall(encode(Frame(data, payload)))

    def hello(self, number: int, count: int = 2) -> None:
        about = {"host": "h", "pid": 100 + number}
        self.send({"kind": "hello", "process": number, "count": count, "about": about})

    def answer(self, value: Any, timeout_s: float | None = None) -> None:
        self.send({"kind": "answer", "value": value, "timeout_s": timeout_s})

    def receive(self) -> Frame:
        while not self.frames:
            received = self.socket.recv(1 << 16)
            assert received, "the hub closed the connection"
            self.frames += self.reader.feed(received)
        return self.frames.pop(0)


@contextmanager
def serving(count: int = 2, timeout_s: float = 60) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        hub, done = Hub(listener, count, timeout_s, 20, {"service_port": 7}), threading.Event()

        def serve() -> None:
            while not done.is_set():
                hub.serve(0.05)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            done.set()
            thread.join()


@contextmanager
def joined(count: int = 2) -> Iterator[list[Client]]:
    with serving(count) as port:
        clients = [Client(port) for _ in range(count)]
        for number, client in enumerate(clients):
            client.hello(number, count)
        for client in clients:
            assert client.receive().data["kind"] == "welcome"
        yield clients


def test_all_are_welcome_when_all_are_there() -> None:
    with serving() as port:
        second, first = Client(port), Client(port)
        second.hello(1)
        first.hello(0)
        for client in (first, second):
            data = client.receive().data
            assert data["service_port"] == 7
            assert [one["pid"] for one in data["members"]] == [100, 101]


def test_a_missing_process_is_named() -> None:
    with serving(count=3, timeout_s=0.3) as port:
        clients = [Client(port), Client(port)]
        clients[0].hello(0, 3)
        clients[1].hello(2, 3)
        for client in clients:
            assert client.receive().data == {"kind": "refused", "text": "process 1 did not connect in time"}


def test_a_process_of_another_job_is_named() -> None:
    with serving() as port:
        first, other = Client(port), Client(port)
        first.hello(0)
        other.hello(1, count=5)
        for client in (first, other):
            text = client.receive().data["text"]
            assert text == "process 1 (host h, pid 101) was started for 5 processes, and process 0 for 2"


def test_equal_answers_are_one_group() -> None:
    with joined(3) as clients:
        for client, value in zip(clients, ["a", "b", "a"], strict=True):
            client.answer(value)
        for client in clients:
            groups = client.receive().data["groups"]
            assert groups == [{"value": "a", "processes": [0, 2]}, {"value": "b", "processes": [1]}]


def test_questions_keep_their_order_when_one_process_is_ahead() -> None:
    with joined() as (first, second):
        first.answer(1)
        second.answer(2)
        first.answer(3)
        second.answer(3)
        for client in (first, second):
            assert [len(client.receive().data["groups"]) for _ in range(2)] == [2, 1]


def test_who_does_not_answer_in_time_is_named() -> None:
    with joined() as (first, second):
        first.answer("here", timeout_s=0.2)
        for client in (first, second):
            assert client.receive().data == {"kind": "late", "processes": [1], "ended": False}


def test_who_ended_is_not_waited_for() -> None:
    with joined() as (first, second):
        second.send({"kind": "ended", "steps": 3})
        assert first.receive().data == {"kind": "ended", "process": 1, "steps": 3}
        first.answer("here")
        assert first.receive().data == {"kind": "late", "processes": [1], "ended": True}


def test_what_is_shared_comes_whole_and_in_order() -> None:
    with joined(3) as clients:
        payload = bytes(range(256)) * 40_000
        clients[0].send({"kind": "share", "data": {"n": 1}}, payload)
        for client in clients:
            client.answer(0)
        for client in clients[1:]:
            frame = client.receive()
            assert (frame.data["data"], frame.payload) == ({"n": 1}, payload)
            assert client.receive().data["kind"] == "answers"


def test_only_the_first_cause_is_told() -> None:
    with joined(3) as (first, second, third):
        second.socket.close()
        assert first.receive().data == {"kind": "gone", "process": 1}
        third.socket.close()
        first.answer("still here")
        first.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            first.receive()


def test_all_may_end() -> None:
    with joined() as clients:
        for client in clients:
            client.send({"kind": "ended", "steps": 1})
        for client in clients:
            assert [client.receive().data["kind"] for _ in range(2)] == ["ended", "all ended"]


def test_a_stranger_does_not_disturb_the_job() -> None:
    with joined() as (first, second), socket.create_connection(first.socket.getpeername(), timeout=20) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n")
        assert stranger.recv(10) == b""
        for client in (first, second):
            client.answer(0)
        assert first.receive().data["groups"] == [{"value": 0, "processes": [0, 1]}]


def test_frames_are_cut_wherever_the_network_cuts_them() -> None:
    sent = [Frame({"a": 1}, b"xyz"), Frame({"b": "é"})]
    stream = b"".join(map(encode, sent))
    reader, found = Reader(), []
    for i in range(len(stream)):
        found += reader.feed(stream[i : i + 1])
    assert found == sent
    with pytest.raises(BadFrame):
        reader.feed(b"\xff" * 16)
