"""Who of a job's processes is gone: a thread in process 0, to which each process keeps a connection.

Owns the lines that go over these connections. jax's own service tells of a dead process when its heartbeats are missed,
and aborts the others; a connection that closes tells at once. Must not know: jax, and what the processes compute.
"""

from __future__ import annotations

import contextlib
import secrets
import selectors
import socket
import threading
import time
from dataclasses import dataclass, field

from rhino.errors import RhinoError

MISSES = 4  # pings in a row without an answer, after which a process may hang; jax's service takes longer to say
_PORTS = 4  # process 0 takes the first of so many that is free
_LINE_BYTES = 1000
_REPLY_S = 30.0
_LOOK_S = 0.05
_STRANGER_S = 60.0  # how long a connection may stay that does not say what only processes of the job can


@dataclass(slots=True)
class _Peer:
    """One connection. `number` is what it says, and `known` that it has shown the token; `misses` counts pings."""

    connection: socket.socket
    since: float
    lines: Lines
    number: int = -1
    where: str = ""
    known: bool = False
    misses: int = 0


@dataclass(slots=True)
class Lines:
    """Cuts what comes into lines, none longer than a kilobyte."""

    _bytes: bytearray = field(default_factory=bytearray)

    def feed(self, received: bytes) -> list[str]:
        """The lines that are complete with these bytes.

        Raises:
          ValueError: another program speaks.
        """
        *lines, rest = bytes(self._bytes + received).split(b"\n")
        if any(len(line) > _LINE_BYTES for line in (*lines, rest)):
            raise ValueError("a line is too long")
        self._bytes = bytearray(rest)
        return [line.decode() for line in lines]


def line(*words: object) -> bytes:
    """Words as one line, cut where it is too long."""
    text = " ".join(map(str, words)).replace("\n", " ")
    return text.encode()[: _LINE_BYTES - 8].decode(errors="ignore").encode() + b"\n"


def ping_s(lost_after_s: float) -> float:
    """How often, in seconds, processes show each other that their threads run."""
    return lost_after_s / 10


class Watch:
    """The thread in process 0.

    Args:
      port: of the job; the connections come to one of the next.
      count: of processes.
      timeout_s: how long all may take to come.
      lost_after_s: how long a host may leave what was sent to it unacknowledged.
      believe: whether a process that says that it is of this job can end its start. If not, only the time can.

    Attributes:
      token: what each process must show to be heard once the job runs.

    Raises:
      RhinoError: no port is free.
    """

    def __init__(self, port: int, count: int, timeout_s: float, lost_after_s: float, *, believe: bool) -> None:
        self.token = secrets.token_hex(16)
        self._job, self._count, self._lost_after_s, self._believe = f"rhino-{port}", count, lost_after_s, believe
        self._deadline = time.monotonic() + timeout_s
        self._listener = _listen(port)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._peers: list[_Peer] = []
        self._members: dict[int, _Peer] = {}  # those that showed the token
        self._where: dict[int, str] = {}
        self._came: set[str] = set()  # hosts and pids of the others
        self._failed: dict[int, str] = {}
        self._ended: dict[int, str] = {}
        self._cause = ""
        threading.Thread(target=self._serve, name="rhino-watch", daemon=True).start()

    def others(self) -> int:
        """How many processes besides process 0 are connected."""
        return sum(peer.number > 0 for peer in [*self._peers])

    def outlast(self, most_s: float, late_s: float = 0.0) -> None:
        """Wait until the other processes have ended, and `late_s` seconds for those that are still on their way.

        None that may still connect must find nobody here to say why the job stops.
        """
        late = min(time.monotonic() + late_s, self._deadline)
        while len(self._came) < self._count - 1 and time.monotonic() < late:
            time.sleep(_LOOK_S)
        until = time.monotonic() + most_s
        while self.others() and time.monotonic() < until:
            time.sleep(_LOOK_S)

    # --- connections ------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        every_s = ping_s(self._lost_after_s)
        tick = time.monotonic() + every_s
        while True:
            # All that has come is heard before any of it counts: who is gone is the cause of another's failure.
            for key, _ in self._selector.select(max(0.0, tick - time.monotonic())):
                if key.data is None:
                    self._accept()
                else:
                    self._read(key.data)
            self._judge()
            if time.monotonic() >= tick:
                self._tick()
                tick = time.monotonic() + every_s

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it gave up before it was accepted
            connection, _ = self._listener.accept()
            if len(self._peers) - len(self._members) > 2 * self._count + 64:
                connection.close()
                return
            connection.setblocking(False)
            acknowledged_within(connection, 0.75 * self._lost_after_s)
            peer = _Peer(connection, time.monotonic(), Lines())
            self._peers.append(peer)
            self._selector.register(connection, selectors.EVENT_READ, peer)

    def _read(self, peer: _Peer) -> None:
        try:
            received = peer.connection.recv(1 << 12)
            for text in peer.lines.feed(received):
                self._hear(peer, text)
        except BlockingIOError:
            return
        except (OSError, ValueError):
            received = b""
        if not received:
            self._drop(peer)

    def _send(self, peer: _Peer, *words: object) -> None:
        # A connection that is broken is found so when it is read. What is sent to one that does not read is little.
        with contextlib.suppress(OSError):
            peer.connection.send(line(*words))

    def _tell(self, *words: object) -> None:
        for peer in [*self._members.values()]:
            self._send(peer, *words)

    def _drop(self, peer: _Peer) -> None:
        if peer in self._peers:
            self._peers.remove(peer)
            self._selector.unregister(peer.connection)
            peer.connection.close()

    # --- what they say ----------------------------------------------------------------------------------------------

    def _hear(self, peer: _Peer, text: str) -> None:
        word, _, rest = text.partition(" ")
        if peer.number < 0:
            self._claim(peer, word, rest)
        elif not peer.known:
            if word != "token" or not secrets.compare_digest(rest.encode(), self.token.encode()):
                raise ValueError("a stranger")
            self._know(peer)
        elif word == "pong":
            if peer.misses > MISSES:
                self._tell("back", peer.number)
            peer.misses = 0
        elif word == "failed":
            self._failed[peer.number] = f"{_who(peer)} failed: {rest}"
        elif word == "stop":
            self._failed[peer.number] = rest
        elif word == "ended":
            self._ended[peer.number] = rest
            self._tell("ended", peer.number, rest)

    def _claim(self, peer: _Peer, job: str, rest: str) -> None:
        """Who a process says it is, before jax knows it."""
        count, number, host, pid = rest.split(" ")
        if job != self._job or not 0 <= int(number) < int(count):
            raise ValueError("of another job")
        peer.number, peer.where = int(number), f"host {host}, pid {pid}"
        self._where[peer.number] = _who(peer)
        if peer.number > 0:
            self._came.add(peer.where)
        wrong = self._twice() if self._believe else ""
        if int(count) != self._count:
            wrong = f"{_who(peer)} was started for {count} processes, and process 0 for {self._count}"
        if wrong and self._believe and not self._members:
            self._stop(wrong)
        if not self._members:
            wrong = self._cause or wrong
        self._send(peer, "stop", wrong) if wrong else self._send(peer, self._job)

    def _know(self, peer: _Peer) -> None:
        peer.known = True
        if peer.number in self._members:
            self._stop(f"process {peer.number} was started twice: {self._members[peer.number].where} and {peer.where}")
        else:
            self._members[peer.number] = peer
            self._where[peer.number] = _who(peer)
        if peer.number == 0:
            for one in self._peers:
                one.since = time.monotonic()  # from here on, each can have the token

    def _twice(self) -> str:
        for number in range(self._count):
            # One that gave up and came again is the same one.
            places = list(dict.fromkeys(peer.where for peer in self._peers if peer.number == number))
            if len(places) > 1:
                return f"process {number} was started twice: {' and '.join(places)}"
        return ""

    # --- who is gone ------------------------------------------------------------------------------------------------

    def _stop(self, cause: str) -> None:
        """Tell everyone why the job stops. Only the first cause is one: what follows is its consequence."""
        if not self._cause:
            self._cause = cause
            for peer in [*self._peers]:
                if peer.known or (peer.number >= 0 and not self._members):
                    self._send(peer, "stop", cause)

    def _absent(self) -> list[int]:
        here = {peer.number for peer in self._peers if peer.number not in self._members}
        here |= {number for number, peer in self._members.items() if peer in self._peers}
        return [number for number in range(self._count) if number not in here]

    def _judge(self) -> None:
        if self._cause or len(self._ended) == self._count:
            return
        started = 0 in self._members  # jax lets process 0 through when all have come
        if not started and time.monotonic() > self._deadline:
            absent = ", ".join(map(str, self._absent()))
            words = [f"process{'es' * (',' in absent)} {absent} did not connect in time"] if absent else []
            words += [twice] if (twice := self._twice()) else []
            self._stop("; ".join(words) or "not all processes reached jax's coordination service in time")
        elif started or self._believe:
            gone = [n for n in self._absent() if n not in self._failed and (started or n in self._where)]
            names = " and ".join(self._where.get(number, f"process {number}") for number in gone)
            if gone:
                self._stop(f"{names} {'is' if len(gone) == 1 else 'are'} gone: killed, crashed, or its host is lost")
            elif self._failed:
                self._stop(next(iter(self._failed.values())))

    def _tick(self) -> None:
        old = time.monotonic() - _STRANGER_S
        for peer in [*self._peers]:
            if not peer.known and peer.since < old and (peer.number < 0 or self._cause or 0 in self._members):
                self._drop(peer)
        for peer in [*self._members.values()]:
            # Pings, not seconds: while C++ keeps the interpreter here, nobody is asked.
            if peer.misses == 0:
                self._send(peer, "ping")
            if peer.misses == MISSES:
                self._tell("slow", peer.number)
            peer.misses += 1


def _who(peer: _Peer) -> str:
    return f"process {peer.number} ({peer.where})"


def _listen(port: int) -> socket.socket:
    reason = "there is none"
    for candidate in range(port + 1, min(port + 1 + _PORTS, 1 << 16)):
        try:
            if socket.has_dualstack_ipv6():
                return socket.create_server(("", candidate), family=socket.AF_INET6, dualstack_ipv6=True, backlog=4096)
            return socket.create_server(("", candidate), backlog=4096)
        except OSError as error:
            reason = error.strerror or str(error)
    raise RhinoError(
        f"process 0 cannot listen on any of the {_PORTS} ports after {port}: {reason}",
        "give another port in coordinator_address",
    )


def acknowledged_within(connection: socket.socket, seconds: float) -> None:
    """Let the kernel close a connection when the other host leaves what was sent to it unacknowledged for so long.

    The kernel acknowledges for a process that computes, so how busy a process is does not matter.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * seconds))


def reach(host: str, port: int, count: int, number: int, pid: int, deadline: float) -> tuple[socket.socket, str]:
    """A connection to the watch of the job at this address, which may start later, and why the job stops, if it does.

    Args:
      deadline: on the monotonic clock.

    Raises:
      OSError: none answers until then.
    """
    job = f"rhino-{port}"
    while True:
        refused: OSError | None = None
        for candidate in range(port + 1, min(port + 1 + _PORTS, 1 << 16)):
            try:
                connection = socket.create_connection((host, candidate), timeout=5.0)
            except OSError as error:
                refused = refused or error
                continue
            connection.settimeout(_REPLY_S)
            with contextlib.suppress(OSError, ValueError):
                connection.sendall(line(job, count, number, socket.gethostname(), pid))
                word, _, rest = _read_line(connection).partition(" ")
                if word in (job, "stop"):
                    return connection, rest
            connection.close()  # another job's, or another program's
        if time.monotonic() > deadline:
            raise refused or TimeoutError("nobody answers")
        time.sleep(0.2)


def _read_line(connection: socket.socket) -> str:
    """One line, byte for byte: what follows it is for another reader."""
    read = bytearray()
    while not read.endswith(b"\n"):
        received = connection.recv(1)
        if not received or len(read) > _LINE_BYTES:
            raise ValueError("no line")
        read += received
    return read[:-1].decode()
