"""Jax's private modules for jobs of several processes: who they are, how they start, what they tell each other.

Must not know: what is planned or run. Private uses were tried on 0.10.2 and 0.12.0.1.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any

import jax
from jax._src import clusters, distributed, xla_bridge

from rhino.errors import RhinoError, first_line

_JOB_REMEDY = "give coordinator_address, num_processes and process_id"
_EVER_MS = 10**10
_sharings = itertools.count()  # all processes share the same things in the same order


def backends_started() -> bool:
    """Whether jax has started any backend. Private: jax says so only by refusing."""
    return bool(xla_bridge.backends_are_initialized())


def distributed_started() -> bool:
    """Whether jax.distributed is initialised."""
    return bool(jax.distributed.is_initialized())


def detect_job(
    address: str | None,
    count: int | None,
    process: int | None,
    local_device_ids: int | Sequence[int] | None,
    method: str | None,
    timeout_s: int,
) -> tuple[str, int, int, list[int] | None]:
    """What is not given of a job's address, number of processes, this one's number and devices, from its launcher.

    Private: jax detects launchers only inside `jax.distributed.initialize`, after which it is too late to meet first.

    Raises:
      RhinoError: it is not given, and no launcher that jax knows started this process.
    """
    local = [local_device_ids] if isinstance(local_device_ids, int) else local_device_ids
    local = list(local) if local is not None else None
    address = address or os.environ.get("JAX_COORDINATOR_ADDRESS")
    if local is None and (listed := os.environ.get("JAX_LOCAL_DEVICE_IDS")):
        local = [int(one) for one in listed.split(",")]
    if None in (address, count, process) or local is None:
        try:
            address, count, process, local = clusters.ClusterEnv.auto_detect_unset_distributed_params(
                address, count, process, local, method, timeout_s
            )
        except (RuntimeError, ValueError, NotImplementedError, OSError) as error:
            raise RhinoError(f"the job's launcher cannot be asked: {first_line(error)}", _JOB_REMEDY) from None
    if address is None or count is None or process is None:
        missing = {"coordinator_address": address, "num_processes": count, "process_id": process}
        names = ", ".join(name for name, value in missing.items() if value is None)
        raise RhinoError(f"{names} not given, and no launcher that jax knows started this process", _JOB_REMEDY)
    return address, count, process, local


class Store:
    """The keys and values and the barriers of jax's coordination service, for the processes of a job.

    Private: `jax.distributed` keeps the client of the service to itself. Where the service is gone, the methods raise
    `JaxRuntimeError`, and XLA aborts the process.
    """

    def __init__(self) -> None:
        self._client: Any = distributed.global_state.client

    def put(self, key: str, value: bytes) -> bool:
        """Store a value under a key; False if that has one already, which stays."""
        try:
            self._client.key_value_set_bytes(key, value)
        except jax.errors.JaxRuntimeError as error:
            if not str(error).startswith("ALREADY_EXISTS"):
                raise
            return False
        return True

    def get(self, key: str) -> bytes:
        """The value of a key. Waits as long as there is none."""
        return bytes(self._client.blocking_key_value_get_bytes(key, _EVER_MS))

    def answers(self, key: str, timeout_s: float) -> bool:
        """Whether the service gives a key's value within the time. It does while C++ keeps process 0's interpreter."""
        try:
            self._client.blocking_key_value_get_bytes(key, int(1000 * timeout_s))
        except jax.errors.JaxRuntimeError:
            return False
        return True

    def all(self, folder: str) -> dict[str, bytes]:
        """The values under `folder/`, by the last parts of their keys."""
        return {
            key.rpartition("/")[2]: bytes(value) for key, value in self._client.key_value_dir_get_bytes(f"{folder}/")
        }

    def delete(self, folder: str) -> None:
        """Drop all that is under `folder/`."""
        self._client.key_value_delete(f"{folder}/")

    def meet(self, barrier: str, timeout_s: float) -> bool:
        """Wait until all processes are at a barrier; False if they are not within the time, counted from the first."""
        try:
            self._client.wait_at_barrier(barrier, int(1000 * timeout_s))
        except jax.errors.JaxRuntimeError as error:
            if not str(error).startswith("DEADLINE_EXCEEDED"):
                raise
            return False
        return True


def share(what: str, value: bytes, timeout_s: float) -> list[bytes]:
    """What each process of the job gives, by the processes' numbers; every process must call it.

    Private: the client of jax's coordination service, which `jax.distributed` keeps to itself.

    Raises:
      RhinoError: a process gave nothing within the time.
    """
    client, number = distributed.global_state.client, next(_sharings)
    if client is None:
        return [value]
    client.key_value_set_bytes(f"rhino/{number}/{jax.process_index()}", value)
    found = []
    for process in range(jax.process_count()):
        try:
            given = client.blocking_key_value_get_bytes(f"rhino/{number}/{process}", int(1000 * timeout_s))
        except jax.errors.JaxRuntimeError as error:
            raise RhinoError(
                f"process {process} gave no {what} within {timeout_s:.0f} s: {first_line(error)}",
                "see its output; every process must run the same steps",
            ) from None
        found.append(bytes(given))
    return found
