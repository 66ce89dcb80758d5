"""What a step sends between processes: the transfers of its schedule, arguments that several read, results for all.

Owns the edges, which are connected before the first step. Knows nothing of when they are used.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from rhino.compile._jax import numpy_dtype
from rhino.compile._jax_processes import share
from rhino.distributed.arrays import TOLD_BYTES
from rhino.errors import RhinoError
from rhino.machine import Cluster
from rhino.passes.stage.edge_messages import EdgeMessages, moved_by
from rhino.pipeline.program import PipelineProgram, edges_of
from rhino.reshard import MovedTensor
from rhino.runtime.edges import ArrayExchange, plan_arrays, tensors_of
from rhino.runtime.here import network_of_processes
from rhino.runtime.lanes import Batch, Lanes
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
      messages: by name, what each edge sends.
      types: the context in which to dispatch.
    """

    def __init__(
        self,
        program: PipelineProgram,
        script: Script,
        shardings: Sequence[Any],
        devices: Sequence[Sequence[Any]],
        cluster: Cluster | None,
        messages: Mapping[str, EdgeMessages],
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
        number = {
            position: device.id
            for mesh, group in zip(program.meshes, devices, strict=True)
            for position, device in zip(mesh.devices, group, strict=True)
        }
        self._sent = {tuple(t.index for t in edge.transfers): edge.name for edge in edges_of(program)}
        self._sends = {name: edge.numbered(number) for name, edge in messages.items()}
        self._number = number
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
        """Compiles every edge, and makes its connections, in one order for all processes.

        All processes call it. Any other order could leave two waiting for each other.
        """
        for action in actions:
            if isinstance(action, Batch):
                self._edge(action)
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

    # --- what edges send --------------------------------------------------------------------------------------------

    def _group(self, slot: int) -> int:
        return self._program.values[self._script.values[slot]].group

    def _between(self, source: int, target: int) -> tuple[int, int, str, int, int]:
        return self._group(source), self._group(target), "argument", source, target

    def _edge(self, batch: Batch) -> None:
        """The transfers of a batch, whose messages the module says."""
        key = (batch.source, batch.target, batch.transfers)
        if key in self._edges:
            return
        name = self._sent.get(batch.transfers)
        if name is None or name not in self._sends:
            what = f"a part of an edge, transfers {batch.transfers}" if name is None else f"edge '{name}'"
            raise RhinoError(f"no messages are planned for {what}", "schedule and lower the module's transfers again")
        sent = self._sends[name]
        ends = self._ends([(copy.source, copy.target) for copy in batch.copies])
        for transfer, found in zip(batch.transfers, tensors_of(*ends), strict=True):
            wanted = moved_by(self._program, self._program.transfers[transfer])
            if _by_device(found) != _by_device(wanted, self._number):
                raise RhinoError(
                    f"transfer {transfer} of edge '{name}' is compiled for other layouts than its types say",
                    "form the fragments again",
                )
        senders = [[device for device, _ in each] for each in sent.senders]
        self._edges[key] = ArrayExchange(*ends, sent.program, sent.host_of, senders)

    def _plan(self, key: _Key, pairs: Sequence[tuple[int, int]], targets: Sequence[Any] | None = None) -> None:
        """What no transfer of the module is: copies of arguments, and results that all are told."""
        if key in self._edges:
            return
        sources, own, avals = self._ends(pairs)
        ends = (sources, targets or own, avals)
        plan = plan_arrays(*ends, self._network)
        self._edges[key] = ArrayExchange(*ends, plan.program, self._network.host_of)

    def _ends(self, pairs: Sequence[tuple[int, int]]) -> tuple[list[Any], list[Any], list[Any]]:
        """Shardings before and after, and types, of what goes from slot to slot."""
        values = [self._program.values[self._script.values[source]] for source, _ in pairs]
        return (
            [self._shardings[source] for source, _ in pairs],
            [self._shardings[target] for _, target in pairs],
            [jax.ShapeDtypeStruct(value.shape, numpy_dtype(value.dtype)) for value in values],
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


def _by_device(tensor: MovedTensor, number: Mapping[int, int] | None = None) -> Any:
    """Size and tiles of a tensor, these by `number` of their device."""
    ends = (tensor.source, tensor.target)
    tiles = [{(number[t.device] if number else t.device): t.slice for t in end} for end in ends]
    return tensor.shape, tensor.item_bytes, tiles
