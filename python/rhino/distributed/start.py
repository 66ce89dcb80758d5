"""`initialize`: this process joins a job of several, before its backend starts.

Owns the order: detect, meet, compare versions, start jax's own runtime, compare devices. Knows nothing of plans.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rhino.distributed.link import Link, connect
from rhino.errors import RhinoError

_THREADS = 32


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
    coordinator: Any = field(default=None)


_CURRENT = _Current()


def current_job() -> Job | None:
    """The job of several processes that this one joined; None if it is alone.

    Raises:
      RhinoError: jax runs over several processes, and `initialize` was not what started it.
    """
    if _CURRENT.job is None and not _CURRENT.started:
        import jax

        if jax.distributed.is_initialized() and jax.process_count() > 1:
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

    Raises:
      RhinoError: jax has started already, a process is missing or differs; the message names it. Every process raises.
    """
    from rhino.compile import _jax_processes

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
    if process == 0:
        from rhino.distributed import coordinator

        _CURRENT.coordinator = coordinator.start(port, count, timeout_s, lost_after_s, int(end_timeout_s))
    link = connect(host, port, process, count, timeout_s, lost_after_s, end_timeout_s)
    _CURRENT.job = Job(process, count, timeout_s, link)
    _join(link, host, local, timeout_s, lost_after_s, end_timeout_s)


def _join(
    link: Link, host: str, local: Sequence[int] | None, timeout_s: float, lost_after_s: int, end_timeout_s: float
) -> None:
    from rhino.compile import _jax_processes
    from rhino.distributed import facts

    welcome = link.join(facts.introduction())
    different = facts.different_versions(link.members)
    if different:
        raise link.refuse(RhinoError(different, "install the same versions for every process"))
    brackets = f"[{host}]" if ":" in host else host
    _jax_processes.start_distributed(
        lambda: _CURRENT.coordinator,
        coordinator_address=f"{brackets}:{welcome['service_port']}",
        num_processes=link.count,
        process_id=link.number,
        local_device_ids=local,
        cluster_detection_method="deactivate",
        initialization_timeout=int(timeout_s),
        heartbeat_timeout_seconds=lost_after_s + 5,
        shutdown_timeout_seconds=int(end_timeout_s),
    )
    groups = link.ask(facts.devices(), timeout_s)
    different = facts.different_devices(groups, link.members)
    if different:
        raise link.refuse(RhinoError(different, "give every process the same devices"))


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
