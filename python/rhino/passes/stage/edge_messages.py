"""`rhino.multicast` <-> the messages of an edge: what the text says is what runs, and it is proved before it does.

Owns the form of messages in the attribute, and refusing text that says what cannot be. Plans nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, prod
from typing import Any

from jaxlib.mlir import ir

from rhino.dialect import sdy
from rhino.dialect.attributes import RhinoMulticast
from rhino.dialect.base import Scene
from rhino.dialect.multicast import edge_problems
from rhino.errors import RhinoError
from rhino.ir.diagnostics import PassError
from rhino.ir.pipeline import transfer_ops
from rhino.pipeline.program import PipelineEdge, PipelineProgram, Transfer, edges_of
from rhino.program.element_types import dtype_bytes
from rhino.reshard import (
    Hop,
    MessageProgram,
    MessageStep,
    MovedTensor,
    Network,
    Phase,
    Tile,
    Unit,
    check_program,
    order_of,
    senders_of,
)

_REMEDY = "rhino-lower-transfers plans it"


@dataclass(frozen=True, slots=True)
class EdgeMessages:
    """What goes over the wire when an edge is sent.

    Attributes:
      transfers: positions of the edge's transfers in the program; tensor k of `program` is what the k-th moves.
      hosts: devices of the edge by host, ascending; host k of `program` has `hosts[k]`.
      program: the messages.
      senders: per unit (device, bytes): who reads it for its host to send. None for what stays inside hosts.
    """

    transfers: tuple[int, ...]
    hosts: tuple[tuple[int, ...], ...]
    program: MessageProgram
    senders: tuple[tuple[tuple[int, int], ...], ...]

    @property
    def host_of(self) -> dict[int, int]:
        """The host of each device."""
        return {device: host for host, devices in enumerate(self.hosts) for device in devices}

    def numbered(self, number: Sequence[int] | Mapping[int, int]) -> EdgeMessages:
        """The same of other devices: `number[d]` in the place of d."""

        def named(unit: Unit) -> Unit:
            ends = [tuple(number[device] for device in devices) for devices in (unit.holders, unit.receivers)]
            return replace(unit, holders=ends[0], receivers=ends[1])

        return EdgeMessages(
            self.transfers,
            tuple(tuple(number[device] for device in devices) for devices in self.hosts),
            replace(self.program, units=tuple(map(named, self.program.units))),
            tuple(tuple((number[device], nbytes) for device, nbytes in each) for each in self.senders),
        )


def moved_by(program: PipelineProgram, transfer: Transfer) -> MovedTensor:
    """What a transfer moves, in the bytes that the runtime moves it in: a whole one for smaller elements."""
    source, target = program.values[transfer.source], program.values[transfer.target]
    tiles = []
    for value in (source, target):
        mesh = program.meshes[value.group]
        slices = sdy.slices(value.shape, value.sharding, mesh.axes)
        tiles.append(tuple(Tile(device, where) for device, where in zip(mesh.devices, slices, strict=True)))
    return MovedTensor(source.shape, _item_bytes(source.dtype), tiles[0], tiles[1])


def _item_bytes(dtype: str) -> int:
    return max(1, ceil(dtype_bytes(dtype)))


# --- to text --------------------------------------------------------------------------------------------------------


def multicast_data(messages: EdgeMessages) -> list[dict[str, Any]]:
    """Of each transfer of an edge its units, and of the first one the messages, as `rhino.multicast` has them."""
    program = messages.program
    position = {unit: order for order, unit in enumerate(order_of(program))}
    found: list[dict[str, Any]] = [{"units": []} for _ in messages.transfers]
    for unit, senders in zip(program.units, messages.senders, strict=True):
        data: dict[str, Any] = {
            "slice": [list(bounds) for bounds in unit.slice],
            "holders": list(unit.holders),
            "receivers": list(unit.receivers),
            "order": position[unit.index],
        }
        if senders:
            data["sender"] = _most(senders)
        if len(senders) > 1:
            data["senders"] = [list(sender) for sender in senders]
        found[unit.tensor]["units"].append(data)
    found[0]["hosts"] = [list(devices) for devices in messages.hosts]
    found[0]["bundles"] = [list(bundle) for bundle in program.bundles]
    found[0]["phases"] = [_phase_data(phase) for phase in program.phases]
    return found


def _most(senders: Sequence[tuple[int, int]]) -> int:
    return max(senders, key=lambda sender: sender[1])[0]


def _phase_data(phase: Phase) -> dict[str, Any]:
    steps = [[_hop_data(hop) for hop in step.hops] for step in phase.steps]
    counts = {"periods": phase.periods, "chunks": phase.chunks}
    return {**{name: count for name, count in counts.items() if count > 1}, "steps": steps}


def _hop_data(hop: Hop) -> list[int]:
    chunked = [hop.stride, hop.lag] if hop.stride or hop.lag else []
    return [hop.source, hop.target, hop.bundle, hop.start, hop.length, *chunked]


# --- from text ------------------------------------------------------------------------------------------------------


def read_messages(module: ir.Module, program: PipelineProgram) -> dict[str, EdgeMessages]:
    """By name of the edge what it sends, of all edges whose text says it.

    Raises:
      PassError: at the transfer whose text is wrong: units that are not those of its devices, or messages that do not
        bring every unit to its receivers' hosts.
    """
    ops = transfer_ops(module)
    found = {}
    for edge in edges_of(program):
        first = ops[edge.transfers[0].index]
        data = [(ops[t.index], _checked(ops[t.index], program)) for t in edge.transfers]
        if "hosts" not in (data[0][1] or {}):
            continue
        for op, each in data:
            if each is None or each.get("edge", edge.name) != edge.name:
                has = "has no rhino.multicast" if each is None else f"is of edge '{each['edge']}'"
                raise PassError(
                    op, f"rhino.multicast: the transfer {has}, and is sent with edge '{edge.name}'", [_REMEDY]
                )
        given = [(op, {**(each or {}), "edge": edge.name}) for op, each in data]
        for op, problem in edge_problems(given):
            raise PassError(op, problem, [_REMEDY])
        found[edge.name] = _read(first, program, edge, given)
    return found


def _checked(op: ir.Operation, program: PipelineProgram) -> Any:
    """The data of a transfer, None without it, after the verifier."""
    if RhinoMulticast.name not in op.attributes:
        return None
    axes = {mesh.name: mesh.axes for mesh in program.meshes}
    placement = {mesh.name: mesh.devices for mesh in program.meshes}
    for problem in RhinoMulticast.problems(
        op.attributes[RhinoMulticast.name], Scene(op, axes=axes, placement=placement)
    ):
        raise PassError(op, problem, [_REMEDY])
    return RhinoMulticast.of(op)


def _read(
    first: ir.Operation, program: PipelineProgram, edge: PipelineEdge, given: Sequence[tuple[ir.Operation, Any]]
) -> EdgeMessages:
    shared = given[0][1]
    units: list[Unit] = []
    senders: list[tuple[tuple[int, int], ...]] = []
    places: list[tuple[ir.Operation, str, int]] = []  # of each unit its transfer, its path and its order
    for tensor, ((op, data), transfer) in enumerate(zip(given, edge.transfers, strict=True)):
        item = _item_bytes(program.values[transfer.source].dtype)
        for i, unit in enumerate(data["units"]):
            where = tuple((start, stop) for start, stop in unit["slice"])
            nbytes = prod(stop - start for start, stop in where) * item
            ends = tuple(unit["holders"]), tuple(unit["receivers"])
            units.append(Unit(len(units), tensor, where, nbytes, *ends))
            alone = [[unit["sender"], nbytes]] if "sender" in unit else []
            senders.append(tuple((device, sent) for device, sent in unit.get("senders", alone)))
            places.append((op, f"{RhinoMulticast.name}.units[{i}]", unit["order"]))
    hosts = tuple(tuple(devices) for devices in shared["hosts"])
    phases = tuple(
        Phase(
            phase.get("periods", 1),
            phase.get("chunks", 1),
            tuple(MessageStep(tuple(Hop(*hop) for hop in step)) for step in phase["steps"]),
        )
        for phase in shared["phases"]
    )
    sending = {
        host for phase in phases for step in phase.steps for hop in step.hops for host in (hop.source, hop.target)
    }
    read = EdgeMessages(
        tuple(transfer.index for transfer in edge.transfers),
        hosts,
        MessageProgram(
            tuple(sorted(sending)), tuple(units), tuple(tuple(bundle) for bundle in shared["bundles"]), phases
        ),
        tuple(senders),
    )
    try:
        _prove(read, len(hosts))
    except RhinoError as error:
        raise PassError(first, f"{RhinoMulticast.name}: edge '{edge.name}': {error.message}", [_REMEDY]) from error
    _check_told(read, places)
    return read


def _prove(read: EdgeMessages, hosts: int) -> None:
    for host in read.program.hosts:
        if host >= hosts:
            raise RhinoError(f"a message of host {host}, but there are {hosts} hosts")
    check_program(read.program, Network(read.host_of, dict.fromkeys(range(hosts), Fraction(1))))


def _check_told(read: EdgeMessages, places: Sequence[tuple[ir.Operation, str, int]]) -> None:
    """What is told of senders and order is what the messages say."""
    host_of = read.host_of
    position = {unit: order for order, unit in enumerate(order_of(read.program))}
    for unit, sent in enumerate(senders_of(read.program, host_of)):
        op, path, order = places[unit]
        told = tuple((host_of[device], nbytes) for device, nbytes in read.senders[unit])
        if tuple(sorted(told)) != sent:
            raise PassError(op, f"{path}: {_sending(told)}, but by its messages {_sending(sent)}", [_REMEDY])
        if order != position[unit]:
            raise PassError(op, f"{path}: order {order}, but by its first message {position[unit]}", [_REMEDY])


def _sending(sent: Sequence[tuple[int, int]]) -> str:
    return " and ".join(f"host {host} sends {nbytes} bytes" for host, nbytes in sent) or "nobody sends it"
