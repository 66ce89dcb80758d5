"""Processes in the hosts of a network that do the same things together, told by lines from the bench that leads them.

Owns asking and answering; the leader is the barrier between what they are told. Knows nothing of the questions, and the
leader does not import jax.
"""

from __future__ import annotations

import json
import os
import selectors
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from bench._common import BenchError, Table
from bench._namespaces import Network

# XLA's CPU client has as many threads as this says, or the machine has cores; a waiting transfer holds one.
_ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "NPROC": "32", "TF_CPP_MIN_LOG_LEVEL": "2"}
_COORDINATOR_PORT = 17002


def held(column: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """What a plain stream got of the links' rate in each case (called `column`), and which targets it held."""
    return Table(
        "Calibration (one TCP stream over the nominal rate), and targets",
        (column, "stream", "targets"),
        tuple(
            (
                row["case"],
                f"{row['goodput_bytes_s'] / row['rate_bytes_s']:.3f}",
                "; ".join(f"{name}: {'holds' if ok else 'MISSED'}" for name, ok in row["targets"].items()),
            )
            for row in rows
        ),
    )


class Crew:
    """One process of `module` in each host. They are told everything at the same time, and all answer.

    Args:
      first: what each is told before all else, besides its number and how many there are.
      environment: further variables of all processes.
    """

    def __init__(
        self, network: Network, module: str, first: Mapping[str, Any], environment: Mapping[str, str] | None = None
    ) -> None:
        argv, given = [sys.executable, "-m", module], {**_ENVIRONMENT, **(environment or {})}
        self._workers = [network.start(index, argv, given) for index in range(len(network.hosts))]
        self._network = network
        coordinator = f"{network.hosts[0].address}:{_COORDINATOR_PORT}"
        count = len(self._workers)
        self._tell(
            [
                {**first, "index": index, "count": count, "coordinator": coordinator, "address": host.address}
                for index, host in enumerate(network.hosts)
            ]
        )
        self._answers("starting", 180)

    def ask(self, message: Mapping[str, Any], timeout_s: float) -> list[dict[str, Any]]:
        """All answers to a message, in the order of the hosts.

        Raises:
          BenchError: a process failed, ended, or did not answer in time. All are ended then.
        """
        self._tell([message] * len(self._workers))
        return self._answers(json.dumps(message), timeout_s)

    def _tell(self, messages: Sequence[Mapping[str, Any]]) -> None:
        for worker, message in zip(self._workers, messages, strict=True):
            assert worker.process.stdin is not None
            try:
                worker.process.stdin.write(json.dumps(message) + "\n")
                worker.process.stdin.flush()
            except BrokenPipeError:  # its end is told when its answer does not come
                continue

    def _answers(self, what: str, timeout_s: float) -> list[dict[str, Any]]:
        deadline = time.monotonic() + timeout_s
        found: dict[int, dict[str, Any]] = {}
        with selectors.DefaultSelector() as ready:
            for index, worker in enumerate(self._workers):
                assert worker.process.stdout is not None
                ready.register(worker.process.stdout, selectors.EVENT_READ, index)
            while len(found) < len(self._workers):
                events = ready.select(max(0.0, deadline - time.monotonic()))
                if not events:
                    late = [str(i) for i in range(len(self._workers)) if i not in found]
                    raise self._failed(f"no answer of process {', '.join(late)} after {timeout_s:.0f} s", what)
                for key, _ in events:
                    pipe = self._workers[key.data].process.stdout
                    assert pipe is not None
                    line = pipe.readline()
                    answer = json.loads(line) if line else {"error": f"it ended: {self._workers[key.data].errors()}"}
                    if "error" in answer:
                        raise self._failed(f"process {key.data}: {answer['error']}", what)
                    found[key.data] = answer
                    ready.unregister(key.fileobj)
        return [found[index] for index in range(len(self._workers))]

    def _failed(self, text: str, what: str) -> BenchError:
        self._network.kill()
        return BenchError(f"{text}\n(told: {what})")


def serve(start: Callable[[Mapping[str, Any]], object]) -> None:
    """A worker's whole life: `start` gets what it is told first, and makes the one whose methods answer all the rest.

    A message names the method, as "do"; all else in it are its arguments.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer

    def answer() -> None:
        worker: object | None = None
        for line in sys.stdin:
            message = json.loads(line)
            if worker is None:
                worker = start(message)
                _say(answers, {})
            else:
                _say(answers, getattr(worker, message.pop("do"))(**message))

    code = 0
    try:
        answer()
    except Exception:  # whatever it is, the leader raises it with the number of this process
        code = 1
        _say(answers, {"error": traceback.format_exc()[-3000:]})
    # Not by the usual way out: jax would wait for the other processes.
    sys.stderr.flush()
    os._exit(code)


def _say(answers: IO[str], message: Mapping[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def join(first: Mapping[str, Any], devices: int) -> None:
    """Start JAX in a worker, as one process of all, with `devices` CPU devices and transfers over its host's link."""
    import jax

    jax.config.update("jax_num_cpu_devices", devices)
    jax.config.update("jax_cross_host_transfer_socket_address", f"{first['address']}:17007")
    jax.config.update("jax_cross_host_transport_addresses", f"{first['address']}:0")
    jax.distributed.initialize(first["coordinator"], first["count"], first["index"])
