"""`initialize`: this process joins a job of several, before its backend starts.

Owns the order: detect, start jax's own runtime, compare versions, compare devices. Knows nothing of plans.
"""

from __future__ import annotations

import inspect
import os
import queue
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from rhino.compile import _jax_processes
from rhino.distributed import facts
from rhino.distributed.link import Link
from rhino.distributed.watch import Watch, reach
from rhino.errors import RhinoError, first_line

_THREADS = 32
_HEARTBEAT_S = 5  # by how much jax's service is slower to take a process for dead than the watch
_LATE_S = 30.0  # how long process 0 of a job that cannot start stays to tell those that come later
_WORD_S = 10.0  # how long after the time is over process 0's word on it is waited for
_REMEDY = "see the output of the processes named"


@dataclass(frozen=True, slots=True)
class Job:
    """The job of which this process is a part.

    Attributes:
      process, count: of this process, and how many there are.
      timeout_s: how long processes wait for each other where all must come.
      link: to the others.
    """

    process: int
    count: int
    timeout_s: float
    link: Link


@dataclass(slots=True)
class _Current:
    """What `initialize` did in this process: nothing, or started alone, or joined a job."""

    started: bool = False
    job: Job | None = None


_CURRENT = _Current()


def current_job() -> Job | None:
    """The job of several processes that this one joined; None if it is alone.

    Raises:
      RhinoError: jax runs over several processes, and `initialize` was not what started it.
    """
    if not _CURRENT.started and jax.distributed.is_initialized() and jax.process_count() > 1:
        raise RhinoError(
            "jax.distributed was initialised without rhino: processes could not agree on a plan, nor end together",
            "call rhino.distributed.initialize() in place of jax.distributed.initialize()",
        )
    return _CURRENT.job


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    local_device_ids: int | Sequence[int] | None = None,
    cluster_detection_method: str | None = None,
    timeout_s: float = 300.0,
    lost_after_s: int = 20,
    end_timeout_s: float = 300.0,
    mtls_cert_file: str | None = None,
    mtls_key_file: str | None = None,
    mtls_ca_file: str | None = None,
) -> None:
    """Join the processes of a job: afterwards `jax.devices()` are all processes' devices.

    Every process calls it once, before anything else of jax. Under SLURM, Kubernetes and Open MPI no argument is
    needed: jax detects them. All processes must have the same versions of jax, jaxlib and rhino, and as many devices of
    the same kind. From here on, every process ends with a message on stderr and exit code 1 as soon as another one
    dies or fails.

    Args:
      coordinator_address: "host:port" of process 0, which the others can reach; the next port is used, too.
      num_processes, process_id: how many processes there are, and which this is, from 0. Nothing is started for one.
      local_device_ids: the accelerators of this machine that this process uses; by default all, or what was detected.
      cluster_detection_method: as for `jax.distributed.initialize`.
      timeout_s: seconds that processes wait for each other: here, and wherever all of them must come.
      lost_after_s: seconds without any sign of a host after which its processes count as dead.
      end_timeout_s: seconds that a process that has ended waits for the others, which may have something left to do.
      mtls_cert_file, mtls_key_file, mtls_ca_file: as for `jax.distributed.initialize` of jax 0.12: only
        processes with a certificate take part. Without, whoever reaches the port can.

    Raises:
      RhinoError: jax has started already, a process is missing or differs; the message names it. Every process raises.
    """
    if _CURRENT.started:
        raise RhinoError("rhino.distributed.initialize was called twice", "call it once, at the start of the program")
    if _jax_processes.distributed_started():
        raise RhinoError("jax.distributed is initialised already", "call rhino.distributed.initialize() in place of it")
    if _jax_processes.backends_started():
        raise RhinoError(
            "jax has started its devices already, and cannot take in those of other processes any more",
            "call rhino.distributed.initialize() before the first use of jax: arrays, jax.devices(), random keys",
        )
    if num_processes == 1:
        _CURRENT.started = True
        return
    address, count, process, local = _jax_processes.detect_job(
        coordinator_address, num_processes, process_id, local_device_ids, cluster_detection_method, int(timeout_s)
    )
    host, port = _split(address)
    if not 0 <= process < count:
        raise RhinoError(f"process_id {process} is not one of {count} processes", "number them from 0")
    _CURRENT.started = True
    if count == 1:
        return
    _set_threads()
    certificates = _certificates(mtls_cert_file=mtls_cert_file, mtls_key_file=mtls_key_file, mtls_ca_file=mtls_ca_file)
    deadline = time.monotonic() + timeout_s
    watch = None
    if process == 0:
        _check_free(port)
        # Without certificates, whoever reaches jax's port can keep the job from starting anyway.
        watch = Watch(port, count, timeout_s, lost_after_s, believe=not certificates)
    try:
        connection = _reach(host, port, count, process, deadline)
        link = Link(process, count, connection, watch, lost_after_s, end_timeout_s)
        _start(
            link,
            max(1.0, deadline - time.monotonic()),
            coordinator_address=f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            num_processes=count,
            process_id=process,
            local_device_ids=local,
            cluster_detection_method="deactivate",
            heartbeat_timeout_seconds=lost_after_s + _HEARTBEAT_S,
            shutdown_timeout_seconds=int(end_timeout_s),
            **certificates,
        )
    except RhinoError:
        if watch:
            watch.outlast(_WORD_S, _LATE_S)
        raise
    _CURRENT.job = Job(process, count, timeout_s, link)
    link.join(facts.introduction(), timeout_s)
    different = facts.different_versions(link.members)
    if different:
        raise link.refuse(RhinoError(different, "install the same versions for every process"))
    different = facts.different_devices(link.ask(facts.devices(), timeout_s), link.members)
    if different:
        raise link.refuse(RhinoError(different, "give every process the same devices"))


def _start(link: Link, timeout_s: float, **arguments: Any) -> None:
    """`jax.distributed.initialize`, with an error where a process is missing: XLA would abort without a name."""

    def start() -> None:
        try:
            jax.distributed.initialize(**arguments, initialization_timeout=int(timeout_s) + 60)
            link.stops.put(None)
        except Exception as error:
            link.stops.put(error)

    threading.Thread(target=start, name="rhino-start", daemon=True).start()
    try:
        stop = link.stops.get(timeout=timeout_s + _WORD_S)
    except queue.Empty:
        stop = f"process 0 said nothing within {timeout_s:.0f} s"
    if stop is not None:
        raise RhinoError(f"the job cannot start: {first_line(stop)}", _REMEDY)


def _certificates(**given: str | None) -> dict[str, str]:
    """Those given, if this jax takes them."""
    found = {name: file for name, file in given.items() if file is not None}
    unknown = [name for name in found if name not in inspect.signature(jax.distributed.initialize).parameters]
    if unknown:
        raise RhinoError(f"jax {jax.__version__} does not take {unknown[0]}", "mutual TLS comes with jax 0.12")
    return found


def _check_free(port: int) -> None:
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        raise RhinoError(
            f"process 0 cannot listen on port {port}: {error.strerror}", "give another port in coordinator_address"
        ) from None


def _reach(host: str, port: int, count: int, process: int, deadline: float) -> socket.socket:
    """A connection to process 0's watch, which may start later."""
    seconds = deadline - time.monotonic()
    try:
        connection, stop = reach(host, port, count, process, os.getpid(), deadline)
    except OSError as error:
        raise RhinoError(
            f"process {process} cannot reach process 0 at {host}:{port} within {seconds:.0f} s: "
            f"{error.strerror or error}",
            "is process 0 running, and does a firewall let this port and the next one pass?",
        ) from None
    if stop:
        raise RhinoError(f"the job cannot start: {stop}", _REMEDY)
    return connection


def _split(address: str) -> tuple[str, int]:
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdecimal() or not 0 < int(port) < 65536:
        raise RhinoError(f"coordinator_address {address!r} is not host:port", "give one such as 10.0.0.1:1234")
    return host.strip("[]"), int(port)


def _set_threads() -> None:
    """XLA's CPU client has as many threads as cores. One that waits for another process would keep others waiting."""
    from rhino.compile._jax import starts_cpu

    if "NPROC" not in os.environ and starts_cpu():
        os.environ["NPROC"] = str(max(_THREADS, os.cpu_count() or 1))
