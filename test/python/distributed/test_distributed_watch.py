"""The watch by itself: who is gone, missing, twice or slow; strangers. No jax, no processes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
from processes import free_port

from rhino.distributed.watch import Lines, Watch, line, reach
from rhino.errors import RhinoError


class Client:
    """A process, as the watch sees it."""

    def __init__(self, watch: Watch, port: int, number: int, count: int = 3, pid: int = 0) -> None:
        self.watch, self.lines, self.heard = watch, Lines(), list[str]()
        until = time.monotonic() + 20
        self.socket, self.stop = reach("127.0.0.1", port, count, number, pid or 100 + number, until)
        self.socket.settimeout(20)

    def say(self, *words: object) -> None:
        self.socket.sendall(line(*words))

    def hear(self) -> str:
        """The next line that is no ping."""
        while not self.heard:
            received = self.socket.recv(1 << 12)
            assert received, "the watch closed the connection"
            self.heard += [text for text in self.lines.feed(received) if text != "ping"]
        return self.heard.pop(0)


@pytest.fixture
def port() -> int:
    return free_port()


def started(watch: Watch, port: int) -> list[Client]:
    """Three processes that jax has let through."""
    clients = [Client(watch, port, number) for number in range(3)]
    for client in clients:
        client.say("token", watch.token)
    time.sleep(0.1)
    return clients


@pytest.fixture
def job(port: int) -> Iterator[list[Client]]:
    clients = started(Watch(port, 3, 60, 20, believe=True), port)
    yield clients
    for client in clients:
        client.socket.close()


def name(number: int) -> str:
    return f"process {number} (host {socket.gethostname()}, pid {100 + number})"


GONE = "gone: killed, crashed, or its host is lost"


@pytest.mark.parametrize("dead", [0, 1])
def test_whose_connection_closes_is_named(job: list[Client], dead: int) -> None:
    job[dead].socket.close()
    for number in {0, 1, 2} - {dead}:
        assert job[number].hear() == f"stop {name(dead)} is {GONE}"


def test_only_the_first_cause_is_told(job: list[Client]) -> None:
    job[1].socket.close()
    assert job[0].hear() == f"stop {name(1)} is {GONE}"
    job[2].socket.close()
    job[0].say("failed", "ValueError: of communication")
    job[0].socket.settimeout(0.5)
    with pytest.raises(TimeoutError):
        job[0].hear()


def test_who_fails_is_told_with_the_reason_and_may_close(job: list[Client]) -> None:
    job[1].say("failed", "ValueError: bad data")
    job[1].socket.close()
    for number in (0, 2):
        assert job[number].hear() == f"stop {name(1)} failed: ValueError: bad data"


def test_who_is_gone_is_the_cause_of_what_fails_at_the_same_time(port: int) -> None:
    watch = Watch(port, 3, 60, 20, believe=True)
    job = started(watch, port)
    read = watch._read

    def late(peer: object) -> None:
        time.sleep(0.3)  # the interpreter was kept: all that follows has come in the meantime
        watch._read = read  # type: ignore[method-assign]
        read(peer)  # type: ignore[arg-type]

    watch._read = late  # type: ignore[method-assign, assignment]
    job[0].say("pong")
    time.sleep(0.1)
    job[2].say("failed", "ValueError: Connection closed by peer")
    job[1].socket.close()
    assert job[0].hear() == f"stop {name(1)} is {GONE}"


def test_all_may_end(job: list[Client]) -> None:
    for number, client in enumerate(job):
        client.say("ended", 3)
        for other in job:
            assert other.hear() == f"ended {number} 3"
    job[1].socket.close()
    job[0].socket.settimeout(0.5)
    with pytest.raises(TimeoutError):
        job[0].hear()


def test_who_ended_while_others_run_and_is_killed_is_named(job: list[Client]) -> None:
    job[1].say("ended", 3)
    assert job[0].hear() == "ended 1 3"
    job[1].socket.close()
    assert job[0].hear() == f"stop {name(1)} is {GONE}"


def test_who_does_not_answer_is_told_until_it_does(port: int) -> None:
    job = started(Watch(port, 3, 60, 0.5, believe=True), port)
    with pytest.raises(TimeoutError):  # all but one answer
        until = time.monotonic() + 5
        while time.monotonic() < until:
            for client in job:
                client.socket.settimeout(0.02)
                try:
                    received = client.socket.recv(1 << 12)
                except TimeoutError:
                    continue
                client.heard += client.lines.feed(received)
                if client is not job[1]:
                    client.say("pong")
            if "slow 1" in job[0].heard:
                raise TimeoutError
    assert not [text for text in job[0].heard if text.startswith("slow") and text != "slow 1"]
    job[0].heard.clear()
    job[1].say("pong")
    job[0].socket.settimeout(20)
    while (text := job[0].hear()) != "back 1":
        assert text.startswith("slow")


def test_a_missing_process_is_named(port: int) -> None:
    watch = Watch(port, 3, 0.5, 2, believe=True)
    clients = [Client(watch, port, number) for number in (0, 2)]
    for client in clients:
        assert client.hear() == "stop process 1 did not connect in time"


def test_a_number_given_twice_is_named_before_jax_hears_of_it(port: int) -> None:
    watch = Watch(port, 3, 60, 20, believe=True)
    first, second = Client(watch, port, 1), Client(watch, port, 1, pid=7)
    host = socket.gethostname()
    assert second.stop == f"process 1 was started twice: host {host}, pid 101 and host {host}, pid 7"
    assert first.hear() == f"stop {second.stop}"


def test_one_process_that_connects_again_is_one(port: int) -> None:
    watch = Watch(port, 3, 60, 20, believe=True)
    first, again = Client(watch, port, 1), Client(watch, port, 1)
    assert not again.stop
    with closing(first.socket):
        pass
    again.socket.settimeout(0.5)
    with pytest.raises(TimeoutError):
        again.hear()


def test_a_process_of_another_job_is_named(port: int) -> None:
    watch = Watch(port, 3, 60, 20, believe=True)
    first, other = Client(watch, port, 0), Client(watch, port, 1, count=5)
    assert other.stop == f"{name(1)} was started for 5 processes, and process 0 for 3"
    assert first.hear() == f"stop {other.stop}"


def test_one_that_comes_after_the_job_stopped_is_told_why(port: int) -> None:
    watch = Watch(port, 3, 60, 20, believe=True)
    first, other = Client(watch, port, 0), Client(watch, port, 1, count=5)
    leaves = threading.Thread(target=watch.outlast, args=(20, 20))
    leaves.start()
    with closing(first.socket), closing(other.socket):
        leaves.join(0.5)
    assert leaves.is_alive()
    late = Client(watch, port, 2)
    assert late.stop == other.stop
    late.socket.close()
    leaves.join(10)
    assert not leaves.is_alive()


def test_where_certificates_count_nobody_is_believed_before_the_time_is_over(port: int) -> None:
    watch = Watch(port, 3, 4.0, 2, believe=False)
    first, stranger, other = Client(watch, port, 1), Client(watch, port, 1, pid=7), Client(watch, port, 2, count=9)
    assert (stranger.stop, other.stop[:9]) == ("", "process 2")
    other.socket.close()
    first.socket.settimeout(0.5)
    with pytest.raises(TimeoutError):
        first.hear()
    first.socket.settimeout(20)
    host = socket.gethostname()
    assert first.hear() == (
        f"stop processes 0, 2 did not connect in time; "
        f"process 1 was started twice: host {host}, pid 101 and host {host}, pid 7"
    )


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n", b"x" * 5000, b"\xff\n", b"rhino-1 a\n"])
def test_a_stranger_gets_nothing_and_disturbs_nothing(job: list[Client], said: bytes) -> None:
    with socket.create_connection(job[0].socket.getpeername(), timeout=20) as stranger:
        stranger.sendall(said)
        with suppress(ConnectionResetError):
            assert stranger.recv(10) == b""
    job[0].say("ended", 1)
    assert job[1].hear() == "ended 0 1"


def test_who_knows_the_job_but_not_the_token_is_not_heard(job: list[Client], port: int) -> None:
    for words in (["failed", "a lie"], ["token", "0" * 32], ["token", "ü"]):
        stranger = Client(job[0].watch, port, 1)
        stranger.say(*words)
        with pytest.raises((AssertionError, ConnectionResetError)):
            stranger.hear()
    Client(job[0].watch, port, 2).socket.close()
    job[0].say("ended", 1)
    for client in job:
        assert client.hear() == "ended 0 1"


def test_another_program_on_the_first_port_is_passed_by(port: int) -> None:
    with socket.create_server(("", port + 1)):
        watch = Watch(port, 3, 60, 20, believe=True)
        assert watch._listener.getsockname()[1] == port + 2


def test_no_free_port_is_an_error() -> None:
    with pytest.raises(RhinoError, match="process 0 cannot listen on any of the 4 ports after 65535"):
        Watch(65535, 3, 60, 20, believe=True)


def test_lines_are_cut_wherever_the_network_cuts_them_and_are_short() -> None:
    stream, lines, found = line("failed", "é\nx") + line("pong"), Lines(), list[str]()
    for i in range(len(stream)):
        found += lines.feed(stream[i : i + 1])
    assert found == ["failed é x", "pong"]
    assert len(line("failed", "é" * 5000)) <= 1001
    assert Lines().feed(line("failed", "é" * 5000))[0].startswith("failed éé")
    with pytest.raises(ValueError, match="too long"):
        lines.feed(b"x" * 1001)
