"""What a step sends between processes: the transfers of its schedule, arguments that several read, results for all.

Owns the edges, which are connected before the first step. Plans nothing: each sends what the module says of it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from rhino.compile._jax import numpy_dtype
from rhino.compile._jax_processes import share
from rhino.errors import RhinoError
from rhino.ir.pipeline.messages import EdgeMessages, moved_on
from rhino.pipeline.program import Edge, PipelineProgram, SignatureEdge, edges_of, signature_edges
from rhino.pipeline.program.edges import EVERYWHERE
from rhino.reshard.data import MovedTensor
from rhino.runtime.edges import ArrayExchange, tensors_of
from rhino.runtime.lanes import Batch, Lanes
from rhino.runtime.moves import whole
from rhino.runtime.script import Action, Script

_WAIT_S = 3600.0
_Pairs = Sequence[tuple[int, int]]


class Crossing:
    """All edges of a step between processes, and the lanes they are sent on.

    Attributes:
      lanes: where exchanges are dispatched.
      crossings: by slot of an argument that some processes keep and others read too, the slot that is kept.

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
        messages: Mapping[str, EdgeMessages],
        types: Callable[[], contextlib.AbstractContextManager[Any]],
    ) -> None:
        self._program = program
        self._script = script
        self._shardings = shardings
        self._processes = [frozenset(device.process_index for device in group) for group in devices]
        # Where a fragment itself runs on several processes, what it sends them must keep its place among the transfers.
        alone = all(len(group) == 1 for group in self._processes)
        self.lanes = Lanes(alone and devices[0][0].platform == "cpu", types)
        self._everyone = [device for group in devices for device in group]
        number = {
            position: device.id
            for mesh, group in zip(program.meshes, devices, strict=True)
            for position, device in zip(mesh.devices, group, strict=True)
        }
        self._sent = {edge.parts: edge for edge in edges_of(program)}
        self._sends = {name: edge.numbered(number) for name, edge in messages.items()}
        self._number = number
        self._edges: dict[str, ArrayExchange] = {}
        self._me = jax.process_index()
        self._signature = {edge.name: self._slots(edge) for edge in signature_edges(program) if self._leaves(edge)}
        pairs = [(name, *pair) for name, pairs in self._signature.items() for pair in pairs]
        self.crossings = {target: source for _, source, target in pairs if source != target}
        self._arriving = {target: name for name, source, target in pairs if source != target}
        self._returned = list(dict.fromkeys(name for name, source, target in pairs if source == target))

    @property
    def is_alone(self) -> bool:
        """Whether one process has all of the pipeline."""
        return len(frozenset().union(*self._processes)) == 1

    def is_remote(self, source: int, target: int) -> bool:
        """Whether what goes from group to group concerns several processes."""
        return len(self._processes[source] | self._processes[target]) > 1

    def connect(self, actions: Sequence[Action | Batch]) -> None:
        """Compiles every edge, and makes its connections, in one order for all processes.

        All processes call it. Any other order could leave two waiting for each other.
        """
        for action in actions:
            if isinstance(action, Batch):
                edge = self._sent.get(action.transfers)
                if edge is None:
                    raise _unplanned(f"a part of an edge, transfers {action.transfers}")
                if edge.name not in self._edges:
                    self._make(edge, [(copy.source, copy.target) for copy in action.copies])
        for other in signature_edges(self._program):
            if other.name in self._signature:
                self._make(other, self._signature[other.name])
        self._check_threads()
        if self._edges:
            share("connections", b"", _WAIT_S)  # all are here: whoever waits below waits for no compiler
        for exchange in self._edges.values():
            exchange.warm_up()

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
        edge = self._edges[self._sent[batch.transfers].name]
        return self._send(edge, [(copy.source, copy.target) for copy in batch.copies], table)

    def send_argument(self, target: int, table: list[Any]) -> None:
        """Sends what processes keep to others that read it too, into one of the slots of `crossings`."""
        name = self._arriving[target]
        self._send(self._edges[name], self._signature[name], table)

    def tell(self, table: list[Any]) -> None:
        """Sends everyone the results that all are told, in place."""
        for name in self._returned:
            self._send(self._edges[name], self._signature[name], table)

    def concerns(self, *groups: int) -> bool:
        """Whether this process has a device of any of these groups."""
        return any(self._me in self._processes[group] for group in groups)

    # --- what edges send --------------------------------------------------------------------------------------------

    def _leaves(self, edge: SignatureEdge) -> bool:
        """Whether an edge concerns several processes."""
        values = [value for move in edge.moves for value in move]
        groups = [self._processes[self._program.values[value].group] for value in values if value != EVERYWHERE]
        return len(frozenset().union(*(self._processes if EVERYWHERE in values else groups))) > 1

    def _slots(self, edge: SignatureEdge) -> list[tuple[int, int]]:
        """(from slot, to slot) of what travels on it; a result stays in its slot."""
        if edge.of == "results":
            return [(self._script.results[part], self._script.results[part]) for part in edge.parts]
        slots = {a.value: slot for a, slot in zip(self._program.arguments, self._script.arguments, strict=True)}
        return [(slots[source], slots[target]) for source, target in edge.moves]

    def _make(self, edge: Edge, pairs: _Pairs) -> None:
        """The exchange of an edge, whose messages the module says."""
        if edge.name not in self._sends:
            raise _unplanned(f"edge '{edge.name}'")
        sent = self._sends[edge.name]
        sources, targets, avals = self._ends(pairs)
        if edge.of == "results":
            targets = [whole(self._everyone)] * len(pairs)
        found = tensors_of(sources, targets, avals)
        for part, tensor, wanted in zip(edge.parts, found, moved_on(self._program, edge), strict=True):
            if _by_device(tensor) != _by_device(wanted, self._number):
                what = edge.of.removesuffix("s") if isinstance(edge, SignatureEdge) else "transfer"
                raise RhinoError(
                    f"{what} {part} of edge '{edge.name}' is compiled for other layouts than its types say",
                    "form the fragments again",
                )
        senders = [[device for device, _ in each] for each in sent.senders]
        self._edges[edge.name] = ArrayExchange(sources, targets, avals, sent.program, sent.host_of, senders)

    def _ends(self, pairs: _Pairs) -> tuple[list[Any], list[Any], list[Any]]:
        """Shardings before and after, and types, of what goes from slot to slot."""
        values = [self._program.values[self._script.values[source]] for source, _ in pairs]
        return (
            [self._shardings[source] for source, _ in pairs],
            [self._shardings[target] for _, target in pairs],
            [jax.ShapeDtypeStruct(value.shape, numpy_dtype(value.dtype)) for value in values],
        )

    def _send(self, edge: ArrayExchange, pairs: _Pairs, table: list[Any]) -> list[Any]:
        arrived = self.lanes.send(edge, [table[source] for source, _ in pairs])
        for (_, target), array in zip(pairs, arrived, strict=True):
            table[target] = array
        return arrived


def _unplanned(what: str) -> RhinoError:
    return RhinoError(f"no messages are planned for {what}", "schedule and lower the module's transfers again")


def _by_device(tensor: MovedTensor, number: Mapping[int, int] | None = None) -> Any:
    """Size and tiles of a tensor, these by `number` of their device."""
    ends = (tensor.source, tensor.target)
    tiles = [{(number[t.device] if number else t.device): t.slice for t in end} for end in ends]
    return tensor.shape, tensor.item_bytes, tiles
