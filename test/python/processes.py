"""Starts the processes of a multi-process test on this machine: real ones, talking over loopback."""

from __future__ import annotations

import functools
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import warm

from rhino.passes.registry import TABLE

# What a training step imports: that is two of the three seconds that a small job takes.
MODULES = (
    "jax", "flax.training.train_state", "optax", "rhino.api.parallelized", "rhino.distributed.start",
    "orbax.checkpoint", "rhino.checkpoint.handler",
    *dict.fromkeys(row.partition(":")[0] for row in TABLE.values()),
)  # fmt: skip


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code (negative: the signal), what it printed, and its seconds from the start."""

    code: int
    output: str
    seconds: float


def free_port() -> int:
    """The first of ten free ports, all below those that Linux gives to whoever connects or listens on any."""
    while True:
        first = 10_000 + 10 * secrets.randbelow(2_000)
        with suppress(OSError), ExitStack() as held:
            for port in range(first, first + 10):
                held.enter_context(socket.create_server(("", port)))
            return first


class Forked(warm.Forked):
    """A fork of this process's server, with what tests use of `subprocess.Popen`. Output and errors go to one file."""

    def __init__(self, arguments: Sequence[str], env: Mapping[str, str]) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  (closed with this object)
        number = self._output.fileno()
        with open(os.devnull) as nothing:
            super().__init__(_server(), arguments, (nothing.fileno(), number, number), env)

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        self.wait(timeout)
        number = self._output.fileno()
        return os.pread(number, os.fstat(number).st_size, 0).decode(), None


@functools.cache
def _server() -> str:
    return warm.serve(tempfile.mkdtemp(prefix="rhino-"), MODULES)


def start(
    script: Path,
    count: int,
    arguments: Sequence[str] = (),
    *,
    devices: int = 2,
    env: Mapping[str, str] | None = None,
    forked: bool = False,
) -> list[subprocess.Popen[str] | Forked]:
    """`count` processes of a script, whose first arguments are the coordinator's address, `count` and its own number.

    Each has `devices` CPU devices, and other XLA_FLAGS stay. Output and errors go to one place per process. Those
    that are `forked` have imported `MODULES`, and strings hash alike in all of them.
    """
    address = f"127.0.0.1:{free_port()}"
    mine = dict(os.environ, JAX_PLATFORMS="cpu", PYTHONUNBUFFERED="1", **(env or {}))
    others = [flag for flag in mine.get("XLA_FLAGS", "").split() if "host_platform_device_count" not in flag]
    mine["XLA_FLAGS"] = " ".join([*others, f"--xla_force_host_platform_device_count={devices}"])
    commands = [[str(script), address, str(count), str(index), *arguments] for index in range(count)]
    if forked:
        return [Forked(command, mine) for command in commands]
    return [
        subprocess.Popen(
            [sys.executable, *command], env=mine, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for command in commands
    ]


def wait(processes: Sequence[subprocess.Popen[str] | Forked], timeout: float = 240) -> list[Ended]:
    """Waits for all; what still runs after `timeout` seconds is killed, and its code says so."""
    from concurrent.futures import ThreadPoolExecutor

    begin = time.monotonic()

    def one(process: subprocess.Popen[str] | Forked) -> Ended:
        try:
            output, _ = process.communicate(timeout=max(0.1, begin + timeout - time.monotonic()))
        except (subprocess.TimeoutExpired, TimeoutError):
            with suppress(ProcessLookupError):
                process.kill()
            output, _ = process.communicate()
            output += f"\n[killed by the test after {timeout:.0f} s]"
        return Ended(process.returncode, output, time.monotonic() - begin)

    with ThreadPoolExecutor(len(processes)) as pool:
        return list(pool.map(one, processes))


def run(
    script: Path, count: int, arguments: Sequence[str] = (), *, timeout: float = 240, **options: object
) -> list[str]:
    """What each of the processes printed; fails with all output unless every one of them ends with 0."""
    ended = wait(start(script, count, arguments, **options), timeout)  # type: ignore[arg-type]
    report = "\n".join(f"--- process {i}: exit {one.code}\n{one.output}" for i, one in enumerate(ended))
    assert all(one.code == 0 for one in ended), report
    return [one.output for one in ended]
