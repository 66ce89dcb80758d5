"""The process beside process 0 that hosts what a job meets at: the hub, and jax's coordination service.

Owns starting it, ending it, and its main loop. In process 0 itself, the service's end would make jax abort every other
process at once, without a word on whose end it was.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from typing import Any

from rhino.distributed.hub import Hub
from rhino.errors import RhinoError

_ORPHAN_S = 30.0  # how long it stays for processes that do not end although process 0 did


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """What the coordinator is started with; times in seconds.

    Attributes:
      listener: file descriptor of the socket where processes connect.
      port: of that socket.
      count: of processes.
    """

    listener: int
    port: int
    count: int
    timeout_s: float
    lost_after_s: int
    end_timeout_s: int


class Coordinator:
    """Handle of the coordinator in process 0. jax ends it as it would end its own service: `shutdown()`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def shutdown(self) -> None:
        """Let it end as soon as no process is connected any more."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(b"stop\n")
            self._process.stdin.close()


def start(port: int, count: int, timeout_s: float, lost_after_s: int, end_timeout_s: int) -> Coordinator:
    """Start the coordinator of a job, listening on all addresses of this machine.

    Raises:
      RhinoError: the port is taken, or no process can be started.
    """
    listener = _listen(port)
    settings = CoordinatorSettings(listener.fileno(), port, count, timeout_s, lost_after_s, end_timeout_s)
    # It must find what this process finds, and start no accelerator.
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "JAX_PLATFORMS": "cpu"}
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "rhino.distributed.coordinator", json.dumps(asdict(settings))],
            env=env, pass_fds=[settings.listener], start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
        )  # fmt: skip
        listener.close()
        assert process.stdout is not None
        if not process.stdout.readline():
            process.wait()
            errors.seek(0)
            last = (errors.read().decode(errors="replace").strip().splitlines() or ["it says nothing"])[-1]
            raise RhinoError(f"the coordinator of the job ended at once: {last}")
        process.stdout.close()
    return Coordinator(process)


def _listen(port: int) -> socket.socket:
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=4096)
        return socket.create_server(("", port), backlog=4096)
    except OSError as error:
        raise RhinoError(
            f"process 0 cannot listen on port {port}: {error.strerror}", "give another port in coordinator_address"
        ) from None


def _service_port(port: int) -> int:
    """The next port, which a firewall may be told to let pass; if that is taken, any."""
    for candidate in (port + 1, 0):
        try:
            with _listen(candidate) as found:
                return int(found.getsockname()[1])
        except (RhinoError, OverflowError):
            continue
    raise RhinoError("there is no free port for jax's coordination service")


def main(settings: CoordinatorSettings) -> None:
    """Serve until no process is there any more."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)  # process 0 gets them too, and its end is what counts
    listener = socket.socket(fileno=settings.listener)
    from rhino.compile._jax_processes import coordination_service

    port = _service_port(settings.port)
    # A lost host is found by its connection; heartbeats are for one that hangs so that its watch cannot end it.
    service = coordination_service(
        f"[::]:{port}", settings.count, heartbeat_s=settings.lost_after_s + 5, shutdown_s=settings.end_timeout_s
    )
    hub = Hub(listener, settings.count, settings.timeout_s, settings.lost_after_s, {"service_port": port})
    orders: list[bytes] = []

    def read() -> None:
        orders.append(os.read(0, 64))
        if not orders[-1]:
            hub.unwatch(0)

    hub.watch(0, read)
    os.write(1, b"ready\n")
    orphaned: float | None = None
    while not (orders and hub.connections == 0):
        hub.serve(0.5)
        if orders and orders[0] == b"" and orphaned is None:
            orphaned = time.monotonic()
        if orphaned is not None and time.monotonic() - orphaned > _ORPHAN_S:
            break
    service.shutdown()


def _settings(text: str) -> CoordinatorSettings:
    data: dict[str, Any] = json.loads(text)
    return CoordinatorSettings(**data)


if __name__ == "__main__":
    main(_settings(sys.argv[1]))
