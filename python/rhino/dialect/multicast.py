"""The attribute `rhino.multicast`: what a transfer between meshes is in units, who sends them, and in which order.

Owns this class and what it is checked against: the tiles of both meshes' devices. Knows not how units are planned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import count, product
from math import prod
from typing import Any

from jaxlib.mlir import ir

from rhino.dialect import mpmd, sdy
from rhino.dialect.base import RhinoAttribute, Scene, shape_of
from rhino.schema.kinds import Field, Float, Int, ListOf, Record, String, TupleOf

STRATEGIES = ("send-recv", "local-all-gather", "global-all-gather", "broadcast")
SCHEDULERS = ("naive", "load-balance", "greedy", "search", "optimal")
_SHOWN = 4  # problems of one transfer

_Slice = Sequence[Sequence[int]]


class RhinoMulticast(RhinoAttribute):
    """The ordered unit tasks of a transfer between meshes: slices with one set of holders and one set of receivers.

    Devices are the cluster's, as in `rhino.placement`. The units of a receiver partition what it needs. Transfers of
    one `edge`, which one send of the schedule means, are planned together: they share its makespan and bound, and
    `order` counts through the units of all of them.

    The first transfer of an edge has its messages, which are what the runtime executes: the devices of each host, and
    phases of steps of hops between hosts. A hop is [from, to, bundle, start, bytes] or [.., stride, lag]: in period p
    it sends bytes [start + stride (p - lag), + bytes) of a bundle, if p - lag is one of the chunks. A bundle is units
    whose bytes lie one after the other. `sender`, `senders` and `order` say what follows of these, and which device of
    a host reads a unit. A unit that every receiver's own host holds needs no message, and has no sender.
    """

    name = "rhino.multicast"
    places = ("op",)
    schema = Record(
        {
            "strategy": Field(String(STRATEGIES), "how a unit travels"),
            "scheduler": Field(String(SCHEDULERS), "who chose senders and order"),
            "units": Field(
                ListOf(
                    Record(
                        {
                            "slice": Field(ListOf(TupleOf((Int(0), Int(0)))), "[start, stop) per dimension"),
                            "holders": Field(ListOf(Int(0)), "devices that have the slice"),
                            "receivers": Field(ListOf(Int(0)), "devices that need it"),
                            "sender": Field(
                                Int(0), "the holder that sends it, or most of it; missing within hosts", optional=True
                            ),
                            "order": Field(Int(0), "position among the units of the edge, by first message"),
                            "senders": Field(
                                ListOf(TupleOf((Int(0), Int(1)))),
                                "[device, bytes] of all who send a part; missing for one",
                                optional=True,
                            ),
                        }
                    )
                ),
                "the unit tasks",
            ),
            "edge": Field(String(), "what is planned together; missing for this transfer alone", optional=True),
            "hosts": Field(ListOf(ListOf(Int(0))), "devices of the edge by host, which hops count", optional=True),
            "bundles": Field(ListOf(ListOf(Int(0))), "units of the edge that travel together", optional=True),
            "phases": Field(
                ListOf(
                    Record(
                        {
                            "periods": Field(
                                Int(1), "how often its steps are gone through; 1 if missing", optional=True
                            ),
                            "chunks": Field(Int(1), "pieces of what its hops send; 1 if missing", optional=True),
                            "steps": Field(ListOf(ListOf(ListOf(Int(0)))), "hops at the same time"),
                        }
                    )
                ),
                "the messages of the edge, in order",
                optional=True,
            ),
            "chunks": Field(Int(1), "the most pieces that a broadcast is pipelined in", optional=True),
            "makespan_s": Field(Float(0), "predicted seconds of the whole edge between hosts", optional=True),
            "bound_s": Field(Float(0), "lower bound on the makespan", optional=True),
        }
    )
    example = (
        'rhino.multicast = {edge = "forward 0 -> 1", scheduler = "optimal", strategy = "broadcast", units = [{'
        "holders = [0, 1], order = 0 : i64, receivers = [4, 5], sender = 0 : i64, slice = [[0, 8], [0, 16]]}]}"
    )

    @classmethod
    def check(cls, data: Any, scene: Scene) -> Iterator[str]:
        if scene.op.name != "mpmd.transfer":
            yield f"{cls.name} belongs on 'mpmd.transfer', not on '{scene.op.name}'"
            return
        yield from _messages(cls.name, data)
        if data.get("makespan_s", 0.0) < data.get("bound_s", 0.0) * (1 - 1e-9):
            yield f"{cls.name}: makespan_s {data['makespan_s']:g} is below bound_s {data['bound_s']:g}"
        source, target = (mpmd.mesh_tensor(v.type) for v in (scene.op.operands[0], scene.op.results[0]))
        shape = shape_of(source.tensor) if source else None
        if source is None or target is None or shape is None:
            return
        units = data["units"]
        found = list(_alone(cls.name, units, shape, source.tensor))
        covered = sum(_elements(unit["slice"]) for unit in units)
        if covered != prod(shape):
            found.append(f"{cls.name}: the units hold {covered} elements, but the tensor has {prod(shape)}")
        # Of units that are wrong by themselves the others would only say so again.
        found = found or list(_overlapping(cls.name, units, len(shape)))
        found = found or list(_on_devices(cls.name, units, shape, source, target, scene))
        yield from found[:_SHOWN]


def _messages(name: str, data: Any) -> Iterator[str]:
    """What is wrong with the form of messages. That they are right is proved before they run."""
    given = [key for key in ("hosts", "bundles", "phases") if key in data]
    if given and len(given) < 3:
        yield f"{name} has {', '.join(given)}, but an edge has hosts, bundles and phases"
    listed = [device for host in data.get("hosts", ()) for device in host]
    for device in dict.fromkeys(d for d in listed if listed.count(d) > 1):
        yield f"{name}.hosts: device {device} is on two hosts"
    for i, phase in enumerate(data.get("phases", ())):
        for j, step in enumerate(phase["steps"]):
            for hop in step:
                if len(hop) not in (5, 7):
                    yield f"{name}.phases[{i}].steps[{j}]: hop {hop} is not [from, to, bundle, start, bytes]"


def _alone(name: str, units: Sequence[Any], shape: list[int], tensor: ir.Type) -> Iterator[str]:
    """What is wrong with single units."""
    for i, unit in enumerate(units):
        path = f"{name}.units[{i}]"
        where = unit["slice"]
        if len(where) != len(shape) or not all(a < b <= n for (a, b), n in zip(where, shape, strict=True)):
            yield f"{path}: slice {where} is not inside the shape {shape}"
        most = [unit["sender"]] if "sender" in unit else []
        senders = [device for device, _ in unit.get("senders", ())] or most
        for sender in dict.fromkeys((*most, *senders)):
            if sender not in unit["holders"]:
                yield f"{path}: sender {sender} is not one of the holders {unit['holders']}"
        if senders and (not most or most[0] not in senders):
            yield f"{path}: sender {', '.join(map(str, most)) or 'missing'} is not one of the senders {senders}"
        if not unit["receivers"]:
            yield f"{path} has no receivers"
        if "senders" in unit:
            sent, nbytes = sum(n for _, n in unit["senders"]), _elements(where) * _item_bytes(tensor)
            if sent != nbytes:
                yield f"{path}: the senders send {sent} bytes, but the slice has {nbytes}"


def _overlapping(name: str, units: Sequence[Any], rank: int) -> Iterator[str]:
    """The first two units that share elements: cells of the grid that all ends make belong to one unit each."""
    ends = [sorted({end for unit in units for end in unit["slice"][dim]}) for dim in range(rank)]
    at = [{end: k for k, end in enumerate(cuts)} for cuts in ends]
    owner: dict[tuple[int, ...], int] = {}
    for i, unit in enumerate(units):
        for cell in product(*(range(at[d][a], at[d][b]) for d, (a, b) in enumerate(unit["slice"]))):
            if owner.setdefault(cell, i) != i:
                yield f"{name}: units[{owner[cell]}] and units[{i}] overlap"
                return


def _on_devices(
    name: str, units: Sequence[Any], shape: list[int], source: mpmd.MeshTensor, target: mpmd.MeshTensor, scene: Scene
) -> Iterator[str]:
    """Whether holders have their units, and receivers need exactly theirs, where the module says where meshes are."""
    if source.mesh not in scene.placement or target.mesh not in scene.placement:
        return
    held, needed = (tiles_of(end, shape, scene.axes, scene.placement) for end in (source, target))
    got = dict.fromkeys(needed, 0)
    for i, unit in enumerate(units):
        path, where = f"{name}.units[{i}]", unit["slice"]
        for role, mesh, tiles in (("holder", source.mesh, held), ("receiver", target.mesh, needed)):
            for device in unit[f"{role}s"]:
                if device not in tiles:
                    yield f"{path}: {role} {device} is not a device of mesh '{mesh}'"
                elif not _inside(where, tiles[device]):
                    verb = "has" if role == "holder" else "needs"
                    yield f"{path}: {role} {device} {verb} {tiles[device]}, not all of {where}"
        for device in dict.fromkeys(unit["receivers"]):
            if device in got:
                got[device] += _elements(where)
    for device, elements in got.items():
        if elements != _elements(needed[device]):
            yield f"{name}: device {device} needs {_elements(needed[device])} elements, but its units hold {elements}"


def tiles_of(tensor: mpmd.MeshTensor, shape: Sequence[int], axes: Any, placement: Any) -> dict[int, list[list[int]]]:
    """By device, the slice that it has of a tensor on a mesh."""
    dims = sdy.dims_of(tensor.sharding) if tensor.sharding is not None else ((),) * len(shape)
    slices = sdy.slices(shape, dims, axes.get(tensor.mesh, ()))
    return {
        device: [list(bounds) for bounds in where]
        for device, where in zip(placement[tensor.mesh], slices, strict=False)
    }


def edge_problems(transfers: Sequence[tuple[ir.Operation, Any]]) -> Iterator[tuple[ir.Operation, str]]:
    """What is wrong between the transfers of one edge, given with their data: orders count through all units."""
    orders: dict[int, None] = {}
    for op, data in transfers:
        for unit in data["units"]:
            if unit["order"] in orders:
                yield op, f"{RhinoMulticast.name}: two units of edge '{data['edge']}' have order {unit['order']}"
            orders[unit["order"]] = None
    for op, data in transfers[1:]:
        if "hosts" in data:
            yield op, f"{RhinoMulticast.name}: edge '{data['edge']}' has its messages on its first transfer, not here"
    missing = next(i for i in count() if i not in orders)
    if missing < len(orders):
        op, data = transfers[-1]
        yield op, f"{RhinoMulticast.name}: no unit of edge '{data['edge']}' has order {missing}"


def _elements(where: _Slice) -> int:
    return prod(stop - start for start, stop in where)


def _inside(a: _Slice, b: _Slice) -> bool:
    return all(start <= low and high <= stop for (low, high), (start, stop) in zip(a, b, strict=True))


def _item_bytes(tensor: ir.Type) -> int:
    """Bytes of an element, a whole one for smaller ones, as transfers move them."""
    element = str(ir.RankedTensorType(tensor).element_type)
    bits = int((re.findall(r"\d+", element) or ["8"])[0]) * (2 if element.startswith("complex") else 1)
    return max(1, -(-bits // 8))
