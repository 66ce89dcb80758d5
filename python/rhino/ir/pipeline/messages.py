"""`rhino.multicast` <-> the messages of an edge: what the text says is what runs, and it is proved before it does.

Owns the form of messages in the attribute, and refusing text that says what cannot be. Plans nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from typing import Any

from jaxlib.mlir import ir

from rhino.dialect import sdy
from rhino.dialect.attributes import RhinoMulticast
from rhino.dialect.multicast import Where, edge_problems
from rhino.errors import RhinoError
from rhino.ir.diagnostics import PassError
from rhino.ir.pipeline.multicasts import REMEDY, Multicasts
from rhino.pipeline.program import Edge, PipelineProgram, all_edges
from rhino.pipeline.program.edges import EVERYWHERE
from rhino.program.element_types import item_bytes
from rhino.reshard.checker import check_program
from rhino.reshard.data import Hop, MessageProgram, MessageStep, MovedTensor, Network, Phase, Tile, Unit
from rhino.reshard.sent import order_of, senders_of


@dataclass(frozen=True, slots=True)
class EdgeMessages:
    """What goes over the wire when an edge is sent.

    Attributes:
      parts: positions in the program of the edge's transfers, argument or results; tensor k of `program` is the k-th.
      hosts: devices of the edge by host, ascending; host k of `program` has `hosts[k]`.
      program: the messages.
      senders: per unit (device, bytes): who reads it for its host to send. None for what stays inside hosts.
    """

    parts: tuple[int, ...]
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
            self.parts,
            tuple(tuple(number[device] for device in devices) for devices in self.hosts),
            replace(self.program, units=tuple(map(named, self.program.units))),
            tuple(tuple((number[device], nbytes) for device, nbytes in each) for each in self.senders),
        )


def moved_on(program: PipelineProgram, edge: Edge) -> list[MovedTensor]:
    """What travels on an edge, in the bytes that the runtime moves it in: a whole one for smaller elements."""
    found = []
    for source, target in edge.moves:
        value = program.values[source]
        ends = [_tiles(program, end, value.shape) for end in (source, target)]
        found.append(MovedTensor(value.shape, item_bytes(value.dtype), *ends))
    return found


def _tiles(program: PipelineProgram, value: int, shape: tuple[int, ...]) -> tuple[Tile, ...]:
    if value == EVERYWHERE:
        whole = tuple((0, size) for size in shape)
        return tuple(Tile(device, whole) for mesh in program.meshes for device in mesh.devices)
    mesh = program.meshes[program.values[value].group]
    slices = sdy.slices(shape, program.values[value].sharding, mesh.axes)
    return tuple(Tile(device, where) for device, where in zip(mesh.devices, slices, strict=True))


# --- to text --------------------------------------------------------------------------------------------------------


def multicast_data(messages: EdgeMessages) -> list[dict[str, Any]]:
    """Of each part of an edge its units, and of the first one the messages, as `rhino.multicast` has them."""
    program = messages.program
    position = {unit: order for order, unit in enumerate(order_of(program))}
    found: list[dict[str, Any]] = [{"units": []} for _ in messages.parts]
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
      PassError: at the place whose text is wrong: units that are not those of its devices, or messages that do not
        bring every unit to its receivers' hosts; or text on an argument or result that nothing sends.
    """
    places = Multicasts(module, program)
    found = {}
    places.check_meant(all_edges(program))
    for edge in all_edges(program):
        data = [*zip(places.where(edge), places.checked(edge), strict=True)]
        if "hosts" not in (data[0][1] or {}):
            continue
        for where, each in data:
            if each is None or each.get("edge", edge.name) != edge.name:
                has = "has no rhino.multicast" if each is None else f"is of edge '{each['edge']}'"
                what = "result" if edge.of == "results" else "transfer" if edge.of != "argument" else "argument"
                message = f"rhino.multicast: the {what} {has}, and is sent with edge '{edge.name}'"
                raise PassError(where, message, [REMEDY])
        given = [(where, {**(each or {}), "edge": edge.name}) for where, each in data]
        for where, problem in edge_problems(given):
            raise PassError(where, problem, [REMEDY])
        found[edge.name] = _read(program, edge, given)
    return found


def _read(program: PipelineProgram, edge: Edge, given: Sequence[tuple[Where, Any]]) -> EdgeMessages:
    first, shared = given[0]
    units: list[Unit] = []
    senders: list[tuple[tuple[int, int], ...]] = []
    places: list[tuple[Where, str, int]] = []  # of each unit where it stands, its path and its order
    for tensor, ((op, data), (source, _)) in enumerate(zip(given, edge.moves, strict=True)):
        item = item_bytes(program.values[source].dtype)
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
        edge.parts,
        hosts,
        MessageProgram(
            tuple(sorted(sending)), tuple(units), tuple(tuple(bundle) for bundle in shared["bundles"]), phases
        ),
        tuple(senders),
    )
    try:
        _prove(read, len(hosts))
    except RhinoError as error:
        raise PassError(first, f"{RhinoMulticast.name}: edge '{edge.name}': {error.message}", [REMEDY]) from error
    _check_senders(read, places)
    return read


def _prove(read: EdgeMessages, hosts: int) -> None:
    for host in read.program.hosts:
        if host >= hosts:
            raise RhinoError(f"a message of host {host}, but there are {hosts} hosts")
    check_program(read.program, Network(read.host_of, dict.fromkeys(range(hosts), Fraction(1))))


def _check_senders(read: EdgeMessages, places: Sequence[tuple[Where, str, int]]) -> None:
    """What the text says of senders and order is what the messages say."""
    host_of = read.host_of
    position = {unit: order for order, unit in enumerate(order_of(read.program))}
    for unit, sent in enumerate(senders_of(read.program, host_of)):
        op, path, order = places[unit]
        named = tuple((host_of[device], nbytes) for device, nbytes in read.senders[unit])
        if tuple(sorted(named)) != sent:
            raise PassError(op, f"{path}: {_sending(named)}, but by its messages {_sending(sent)}", [REMEDY])
        if order != position[unit]:
            raise PassError(op, f"{path}: order {order}, but by its first message {position[unit]}", [REMEDY])


def _sending(sent: Sequence[tuple[int, int]]) -> str:
    return " and ".join(f"host {host} sends {nbytes} bytes" for host, nbytes in sent) or "nobody sends it"
