"""What a step sends between processes: the transfers of its schedule, arguments that several read, results for all.

Owns the edges, which are planned and connected before the first step. Knows nothing of when they are used.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax

from rhino.compile._jax import numpy_dtype
from rhino.compile._jax_processes import share
from rhino.distributed.arrays import TOLD_BYTES
from rhino.errors import RhinoError
from rhino.machine import Cluster
from rhino.pipeline.program import PipelineProgram
from rhino.runtime.edges import ArrayExchange
from rhino.runtime.lanes import Batch, Lanes, network_of_processes
from rhino.runtime.moves import whole
from rhino.runtime.places import CallerArgument, Output
from rhino.runtime.script import Action, Script

_WAIT_S = 3600.0
_EVERYONE = -1

_Key = tuple[Any, ...]


class Crossing:
    """All edges of a step between processes, and the lanes they are sent on.

    Attributes:
      lanes: where exchanges are dispatched.
      told: per group, the slots of results that every process gets at the end.

    Args:
      shardings: of each slot.
      devices: per group.
      way: strategy and scheduler, as for `rhino.reshard.plan_reshard`; None for what each transfer says.
      types: the context in which to dispatch.
    """

    def __init__(
        self,
        program: PipelineProgram,
        script: Script,
        shardings: Sequence[Any],
        devices: Sequence[Sequence[Any]],
        cluster: Cluster | None,
        way: tuple[str | None, str | None],
        types: Callable[[], contextlib.AbstractContextManager[Any]],
    ) -> None:
        self.told: dict[int, list[int]] = {}
        self._program = program
        self._script = script
        self._shardings = shardings
        self._processes = [frozenset(device.process_index for device in group) for group in devices]
        # Where a fragment itself runs on several processes, what it sends them must keep its place among the transfers.
        alone = all(len(group) == 1 for group in self._processes)
        self.lanes = Lanes(alone and devices[0][0].platform == "cpu", types)
        self._everyone = [device for group in devices for device in group]
        self._network = network_of_processes(self._everyone, cluster)
        self._way = way
        self._edges: dict[_Key, ArrayExchange] = {}
        self._me = jax.process_index()

    @property
    def is_alone(self) -> bool:
        """Whether one process has all of the pipeline."""
        return len(frozenset().union(*self._processes)) == 1

    def is_remote(self, source: int, target: int) -> bool:
        """Whether what goes from group to group concerns several processes."""
        return len(self._processes[source] | self._processes[target]) > 1

    def connect(
        self, actions: Sequence[Action | Batch], arguments: Sequence[CallerArgument], results: Sequence[Output]
    ) -> None:
        """Plans and compiles every edge, and makes its connections, in one order for all processes.

        All processes call it. Any other order could leave two waiting for each other.
        """
        for action in actions:
            if isinstance(action, Batch):
                pairs = [(copy.source, copy.target) for copy in action.copies]
                first = self._program.transfers[action.transfers[0]]
                given = (self._way[0] or first.strategy, self._way[1] or first.scheduler)
                self._plan((action.source, action.target, action.transfers), pairs, given)
        for argument in arguments:
            for pair in argument.crossings:
                self._plan(self._between(*pair), [pair])
        self._plan_told(results)
        self._check_threads()
        if self._edges:
            share("connections", b"", _WAIT_S)  # all are here: whoever waits below waits for no compiler
        for edge in self._edges.values():
            edge.warm_up()

    def _check_threads(self) -> None:
        """A transfer that waits for its other end holds a thread of XLA's CPU client; computing must have some left."""
        mine = [device for device in self._everyone if device.process_index == self._me]
        ways = {edge.way for edge in self._edges.values() if any(device.id in edge.way for device in mine)}
        needed = len(ways) + len(mine)
        have = int(os.environ.get("NPROC") or os.cpu_count() or 1)
        if ways and mine[0].platform == "cpu" and needed > have:
            raise RhinoError(
                f"process {self._me} needs {needed} threads of XLA's CPU client for its devices and transfers, "
                f"and has {have}",
                f"set NPROC={needed} in the environment before jax starts; rhino.distributed.initialize sets 32",
            )

    def send(self, batch: Batch, table: list[Any]) -> Any:
        """Sends a batch; what arrives, or a handle of it, stands in the table."""
        edge = self._edges[batch.source, batch.target, batch.transfers]
        pairs = [(copy.source, copy.target) for copy in batch.copies]
        return self._send(edge, pairs, table)

    def send_argument(self, source: int, target: int, table: list[Any]) -> None:
        """Sends what processes keep to others that read it too."""
        self._send(self._edges[self._between(source, target)], [(source, target)], table)

    def tell(self, table: list[Any]) -> None:
        """Sends everyone the results of `told`, in place."""
        for group, slots in self.told.items():
            edge = self._edges[group, _EVERYONE]
            self._send(edge, [(slot, slot) for slot in slots], table)

    def concerns(self, *groups: int) -> bool:
        """Whether this process has a device of any of these groups."""
        return any(self._me in self._processes[group] for group in groups)

    # --- planning ---------------------------------------------------------------------------------------------------

    def _group(self, slot: int) -> int:
        return self._program.values[self._script.values[slot]].group

    def _between(self, source: int, target: int) -> tuple[int, int, str, int, int]:
        return self._group(source), self._group(target), "argument", source, target

    def _plan(
        self,
        key: _Key,
        pairs: Sequence[tuple[int, int]],
        way: tuple[str, str] = ("broadcast", "optimal"),
        targets: Sequence[Any] | None = None,
    ) -> None:
        if key in self._edges:
            return
        values = [self._program.values[self._script.values[source]] for source, _ in pairs]
        self._edges[key] = ArrayExchange(
            [self._shardings[source] for source, _ in pairs],
            targets or [self._shardings[target] for _, target in pairs],
            [jax.ShapeDtypeStruct(value.shape, numpy_dtype(value.dtype)) for value in values],
            network=self._network,
            strategy=way[0],
            scheduler=way[1],
        )

    def _plan_told(self, results: Sequence[Output]) -> None:
        kept = {argument.result for argument in self._program.arguments}
        state = {self._script.results[position] for position in kept if position >= 0}
        for output in results:
            slot = output.slots[0]
            value = self._program.values[self._script.values[slot]]
            if len(output.slots) == 1 and slot not in state and value.nbytes <= TOLD_BYTES:
                self.told.setdefault(value.group, []).append(slot)
        if self.is_alone:
            self.told = {}
        for group, slots in self.told.items():
            everywhere = [whole(self._everyone)] * len(slots)
            self._plan((group, _EVERYONE), [(slot, slot) for slot in slots], targets=everywhere)

    def _send(self, edge: ArrayExchange, pairs: Sequence[tuple[int, int]], table: list[Any]) -> list[Any]:
        arrived = self.lanes.send(edge, [table[source] for source, _ in pairs])
        for (_, target), array in zip(pairs, arrived, strict=True):
            table[target] = array
        return arrived
