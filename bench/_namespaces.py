"""Hosts of a benchmark on one machine: network namespaces joined by a bridge, each link shaped to a rate both ways.

Owns making and removing them, starting processes in them, and what a plain TCP stream gets between two of them. Knows
nothing of what the processes do. Namespaces are named after the process that made them, so runs do not collide, and
what a killed run left is found and removed by the next one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from bench._common import ROOT, BenchError

_NAMES = Path("/etc/netns")  # iproute2 mounts what is here over /etc for a process in the namespace
_OURS = re.compile(r"rhino-(\d+)-(\d+)-\w+")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STREAM_PORT = 17001


@dataclass(frozen=True, slots=True)
class Host:
    """A namespace and the address that the others reach it by."""

    name: str
    address: str


@dataclass(frozen=True, slots=True)
class Started:
    """A process in a host. It may be written to by `process.stdin` and read by `process.stdout`; see `errors`."""

    host: Host
    process: subprocess.Popen[str]
    stderr: IO[str]

    def errors(self) -> str:
        """The end of what it wrote to stderr so far."""
        self.stderr.seek(0)
        return self.stderr.read()[-3000:]


@dataclass(frozen=True, slots=True)
class Network:
    """Hosts joined by links of `rate_bits_s` each way, full duplex."""

    hosts: tuple[Host, ...]
    rate_bits_s: float
    started: list[Started] = field(default_factory=list)

    @property
    def bytes_s(self) -> float:
        """What a link carries one way, headers included."""
        return self.rate_bits_s / 8

    def start(self, index: int, argv: Sequence[str], env: Mapping[str, str] | None = None) -> Started:
        """A process in host `index`, in the repository's root; it is killed when the network is removed."""
        host = self.hosts[index]
        # A file and not a pipe: nobody has to read it while the process runs.
        stderr = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed with the network
        process = subprocess.Popen(
            ["ip", "netns", "exec", host.name, *argv],
            cwd=ROOT, env={**os.environ, **(env or {})}, text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True,
        )  # fmt: skip
        self.started.append(Started(host, process, stderr))
        return self.started[-1]

    def run(self, commands: Mapping[int, Sequence[str]], timeout_s: float) -> dict[int, str]:
        """One process per given host, all at once; what each printed.

        Raises:
          BenchError: one ended with another code than 0, or did not end in time; all are killed then.
        """
        made = {index: self.start(index, argv) for index, argv in commands.items()}
        deadline = time.monotonic() + timeout_s
        found = {}
        try:
            for index, one in made.items():
                try:
                    found[index], _ = one.process.communicate(timeout=max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    raise BenchError(f"{' '.join(commands[index])}: not done after {timeout_s:.0f} s") from None
                if one.process.returncode != 0:
                    code = one.process.returncode
                    raise BenchError(f"{' '.join(commands[index])}: exit code {code}\n{one.errors()}")
        finally:
            self.kill()
        return found

    def kill(self) -> None:
        """End all processes of all hosts, at once."""
        for one in self.started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.process.pid, signal.SIGKILL)
        for one in self.started:
            one.process.wait()
            for pipe in (one.process.stdin, one.process.stdout, one.stderr):
                with contextlib.suppress(OSError):  # what was written to a dead process
                    assert pipe is not None
                    pipe.close()
        self.started.clear()

    def goodput(self, nbytes: int) -> float:
        """Bytes per second of one plain TCP stream from the first host to the second, from connecting to the end."""
        script = [sys.executable, "-m", "bench._namespaces", self.hosts[1].address, str(nbytes)]
        found = self.run({1: [*script, "receive"], 0: [*script, "send"]}, 60 + 10 * nbytes / self.bytes_s)
        return nbytes / float(json.loads(found[1]))


def available() -> str | None:
    """Why there can be no namespaces here; None when there can."""
    if not sys.platform.startswith("linux"):
        return f"network namespaces are of Linux, and this is {sys.platform}"
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"the command {tool} is not there (of iproute2)"
    try:
        with network(1):
            return None
    except BenchError as error:
        return f"network namespaces are not permitted: {error}"


@contextlib.contextmanager
def network(count: int, rate_bits_s: float = 200e6) -> Iterator[Network]:
    """`count` hosts, each with a link of `rate_bits_s` each way to a switch; removed at the end, whatever ends it.

    One at a time in a process. The switch is a bridge in a namespace of its own, so that no rule of the machine's own
    network applies to it.

    Raises:
      BenchError: something could not be made; the text is what the command said.
    """
    remove_leftovers()
    prefix = f"rhino-{os.getpid()}-{_born(os.getpid())}"
    names = [f"{prefix}-switch", *(f"{prefix}-{index}" for index in range(count))]
    made: list[str] = []
    built = Network(tuple(Host(n, f"10.77.0.{k + 1}") for k, n in enumerate(names[1:])), rate_bits_s)
    with _signals_raise():
        try:
            for name in names:
                _command("ip", "netns", "add", name)
                made.append(name)
            _command("ip", "-n", names[0], "link", "add", "bridge", "type", "bridge")
            _command("ip", "-n", names[0], "link", "set", "bridge", "up")
            for index, host in enumerate(built.hosts):
                _join(names[0], f"host{index}", host, rate_bits_s)
            yield built
        finally:
            with _signals_ignored():
                built.kill()
                for name in reversed(made):
                    _remove(name)


def _join(switch: str, port: str, host: Host, rate_bits_s: float) -> None:
    """A cable from the host's eth0 to the switch, which shapes what leaves either end."""
    folder = _NAMES / host.name
    folder.mkdir(parents=True)
    # Gloo listens at what the machine's own name resolves to.
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{host.address} {socket.gethostname()}\n", encoding="utf-8")
    _command(*f"ip -n {switch} link add {port} type veth peer name eth0 netns {host.name}".split())
    _command(*f"ip -n {switch} link set {port} master bridge up".split())
    _command(*f"ip -n {host.name} addr add {host.address}/24 dev eth0".split())
    _command(*f"ip -n {host.name} link set eth0 up".split())
    _command(*f"ip -n {host.name} link set lo up".split())
    for namespace, device in ((host.name, "eth0"), (switch, port)):
        # A burst of 2 ms, but not less than some packets: what is sent at once must not be much of a message.
        burst = max(32 << 10, round(rate_bits_s / 8 / 500))
        shape = f"root tbf rate {rate_bits_s:.0f}bit burst {burst} latency 100ms"
        _command("tc", "-n", namespace, "qdisc", "add", "dev", device, *shape.split())


def remove_leftovers() -> None:
    """Remove the namespaces of runs that were killed, and end what still runs in them."""
    listed = {line.split()[0] for line in _command("ip", "netns", "list").splitlines() if line.strip()}
    kept = {path.name for path in _NAMES.iterdir()} if _NAMES.is_dir() else set()
    for name in sorted(listed | kept):
        match = _OURS.fullmatch(name)
        if match and _born(int(match[1])) != int(match[2]):
            _remove(name)


def _remove(name: str) -> None:
    """Remove a namespace, with its devices; what is gone already is none of our errors."""
    with contextlib.suppress(BenchError):
        for pid in _command("ip", "netns", "pids", name).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        _command("ip", "netns", "delete", name)
    shutil.rmtree(_NAMES / name, ignore_errors=True)


def _born(pid: int) -> int:
    """When a process started, in ticks since boot: tells it from others of the same number; -1 if none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return -1
    return int(text.rpartition(")")[2].split()[19])


def _command(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode != 0:
        raise BenchError(f"{' '.join(argv)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """Signals that end a process end it by an exception, so that what it made is removed."""

    def leave(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    with _signals(leave):
        yield


@contextlib.contextmanager
def _signals_ignored() -> Iterator[None]:
    with _signals(signal.SIG_IGN):
        yield


@contextlib.contextmanager
def _signals(handler: Any) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # Python lets no other thread set handlers
        yield
        return
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


# --- the two ends of a TCP stream, run in a host ----------------------------------------------------------------------


def _send(address: str, nbytes: int) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            link = socket.create_connection((address, _STREAM_PORT), timeout=30)
            break
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    piece = memoryview(bytearray(1 << 20))
    with link:
        for start in range(0, nbytes, len(piece)):
            link.sendall(piece[: nbytes - start])


def _receive(address: str, nbytes: int) -> None:
    with socket.create_server((address, _STREAM_PORT)) as listener:
        link, _ = listener.accept()
        start = time.monotonic()
        piece = bytearray(1 << 20)
        left = nbytes
        with link:
            while left:
                got = link.recv_into(piece)
                if not got:
                    raise SystemExit(f"the stream ended {left} bytes early")
                left -= got
    print(time.monotonic() - start)


if __name__ == "__main__":
    {"send": _send, "receive": _receive}[sys.argv[3]](sys.argv[1], int(sys.argv[2]))
