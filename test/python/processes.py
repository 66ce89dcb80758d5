"""Starts the processes of a multi-process test on this machine: real ones, talking over loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code (negative: the signal), what it printed, and its seconds from the start."""

    code: int
    output: str
    seconds: float


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def start(
    script: Path, count: int, arguments: Sequence[str] = (), *, devices: int = 2, env: Mapping[str, str] | None = None
) -> list[subprocess.Popen[str]]:
    """`count` processes of a script, whose first arguments are the coordinator's address, `count` and its own number.

    Each has `devices` CPU devices, and other XLA_FLAGS stay. Output and errors go to one pipe per process.
    """
    address = f"127.0.0.1:{free_port()}"
    mine = dict(os.environ, JAX_PLATFORMS="cpu", PYTHONUNBUFFERED="1", **(env or {}))
    others = [flag for flag in mine.get("XLA_FLAGS", "").split() if "host_platform_device_count" not in flag]
    mine["XLA_FLAGS"] = " ".join([*others, f"--xla_force_host_platform_device_count={devices}"])
    return [
        subprocess.Popen(
            [sys.executable, str(script), address, str(count), str(index), *arguments],
            env=mine, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for index in range(count)
    ]  # fmt: skip


def wait(processes: Sequence[subprocess.Popen[str]], timeout: float = 240) -> list[Ended]:
    """Waits for all; what still runs after `timeout` seconds is killed, and its code says so."""
    from concurrent.futures import ThreadPoolExecutor

    begin = time.monotonic()

    def one(process: subprocess.Popen[str]) -> Ended:
        try:
            output, _ = process.communicate(timeout=max(0.1, begin + timeout - time.monotonic()))
        except subprocess.TimeoutExpired:
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
