"""What goes from group to group across processes in a step: which copies go together, and the threads that send them.

Owns the batches and their order. Knows neither schedules nor how an exchange works.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from typing import Any

import jax

from rhino.machine import Cluster
from rhino.machine.local import host_of
from rhino.pipeline.program import PipelineProgram
from rhino.pipeline.schedule import Task
from rhino.reshard.data import Network
from rhino.runtime.edges import ArrayExchange, Started
from rhino.runtime.script import Action, MoveValue, Script

# Of a cluster that is not described: 10 Gbit/s and 50 microseconds. Only the number of chunks depends on them.
_BANDWIDTH_BYTES_S = 1.25e9
_LATENCY_S = 5e-5


@dataclass(frozen=True, slots=True)
class Batch:
    """Copies of one task from one group to another, which are planned and sent together."""

    task: Task
    source: int
    target: int
    copies: tuple[MoveValue, ...]

    @property
    def transfers(self) -> tuple[int, ...]:
        """The program's transfers it consists of; the same ones for each micro-batch."""
        return tuple(copy.transfer for copy in self.copies)

    @property
    def dead(self) -> tuple[int, ...]:
        """Slots that hold nothing after it."""
        return tuple(slot for copy in self.copies for slot in copy.dead)


def batches(program: PipelineProgram, script: Script, remote: Callable[[int, int], bool]) -> Iterator[Action | Batch]:
    """The actions of a script, those copies put together that one task sends from a group to a `remote` other one."""

    def key(pair: tuple[int, Action]) -> Any:
        number, action = pair
        if isinstance(action, MoveValue) and action.transfer >= 0:
            target = program.values[script.values[action.target]].group
            if remote(action.group, target):
                return action.task, action.group, target
        return number

    for found, pairs in groupby(enumerate(script.actions), key):
        if isinstance(found, int):
            yield next(pairs)[1]
        else:
            task, source, target = found
            yield Batch(task, source, target, tuple(action for _, action in pairs))  # type: ignore[misc]


def network_of_processes(devices: Sequence[Any], cluster: Cluster | None) -> Network:
    """The network that joins the processes of these devices, each a host of its own to `rhino.reshard`.

    Processes of one host share its NICs: each has the same part of their bandwidth, as when all send at once.
    """
    level = cluster.inter_host if cluster else None
    total = Fraction(level.bandwidth_bytes_s) * level.nics if level else Fraction(_BANDWIDTH_BYTES_S)
    host_of_process = {device.process_index: host_of(device) for device in devices}
    sharing = Counter(host_of_process.values())
    return Network(
        {device.id: device.process_index for device in devices},
        {process: total / sharing[host_of_process[process]] for process in sorted(host_of_process)},
        Fraction(level.latency_s if level else _LATENCY_S),
    )


class Lanes:
    """Dispatches exchanges: those of one way (`ArrayExchange.way`) one after the other, by a thread of its own.

    Exchanges of other ways, and computing, go on meanwhile. XLA's CPU client orders programs of one device by the
    thread that dispatches them, so that one thread for all would not do.

    The caller waits until an exchange is dispatched, not until it happens. XLA lets so many programs of a device wait
    and no more (32 on CPUs): if one process dispatched in another order than the next, those that wait could keep out
    what they wait for.

    Args:
      threads: without them everything is dispatched by the caller. GPUs run programs in the order in which they are
        dispatched in any case.
      types: the context in which to dispatch.
    """

    def __init__(self, threads: bool, types: Callable[[], contextlib.AbstractContextManager[Any]]) -> None:
        self._with_threads = threads
        self._types = types
        self._threads: dict[tuple[int, ...], ThreadPoolExecutor] = {}
        self._watched: list[Started] | None = None

    def send(self, edge: ArrayExchange, arrays: Sequence[Any]) -> list[Any]:
        """The arrays of an edge, on their way. They may be given away once this returns."""
        started = edge.start(arrays)
        if self._watched is not None:
            self._watched.append(started)
        if not self._with_threads:
            return edge.finish(started)
        if edge.way not in self._threads:
            self._threads[edge.way] = ThreadPoolExecutor(1, thread_name_prefix="rhino-lane")
        return self._threads[edge.way].submit(self._finish, edge, started).result()

    @contextlib.contextmanager
    def watched(self) -> Iterator[Callable[[], None]]:
        """While inside, `wait` for what was sent can be called: until all of it is over, on this process's side."""
        watched: list[Started] = []
        self._watched = watched

        def wait() -> None:
            jax.block_until_ready([one.over for one in watched])
            watched.clear()

        try:
            yield wait
        finally:
            self._watched = None

    def _finish(self, edge: ArrayExchange, started: Started) -> list[Any]:
        with self._types():
            return edge.finish(started)
