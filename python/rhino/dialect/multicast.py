"""The attribute `rhino.multicast`: what travels between meshes in units, who sends them, and in which order.

Owns this class and what it is checked against: the tiles of both ends' devices. Knows not how units are planned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, product
from math import prod
from typing import Any, TypeAlias

from jaxlib.mlir import ir

from rhino.dialect import functions, mpmd, sdy
from rhino.dialect.base import RhinoAttribute, Scene, shape_of
from rhino.dialect.pipeline_attributes import RhinoArgument
from rhino.program.element_types import item_bytes
from rhino.reshard.data import SCHEDULERS, STRATEGIES
from rhino.schema.kinds import Field, Float, Int, ListOf, Record, String, TupleOf

_SHOWN = 4  # problems of one transfer

_Slice = Sequence[Sequence[int]]
Where: TypeAlias = ir.Operation | ir.Location  # where an attribute stands: an argument or a result has no operation


class RhinoMulticast(RhinoAttribute):
    """The ordered unit tasks of what travels between meshes: slices with one set of holders and one set of receivers.

    On a transfer it says how its operand gets to the other mesh. On an argument of a step in fragments: how it comes
    from the first argument that is the same one of the step, for processes that call with what they keep. On a result:
    how it gets, whole, to every device of the step, so that each process can read it. Arguments and results that stay
    within a host have none.

    Devices are the cluster's, as in `rhino.placement`. The units of a receiver partition what it needs. Transfers of
    one `edge`, which one send of the schedule means, are planned together: they share its makespan and bound, and
    `order` counts through the units of all of them. So are the results of one mesh.

    The first transfer or result of an edge has its messages, which are what the runtime executes: the devices of each
    host, and phases of steps of hops between hosts. A hop is [from, to, bundle, start, bytes] or [.., stride, lag]: in
    period p it sends bytes [start + stride (p - lag), + bytes) of a bundle, if p - lag is one of the chunks. A bundle
    is units whose bytes lie one after the other. `sender`, `senders` and `order` say what follows of these, and which
    device of a host reads a unit. A unit that every receiver's own host holds needs no message, and has no sender.
    """

    name = "rhino.multicast"
    places = ("op", "argument", "result")
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
            "edge": Field(String(), "what is planned together; missing for this alone", optional=True),
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
        if scene.place == "op" and scene.op.name != "mpmd.transfer":
            yield f"{cls.name} belongs on 'mpmd.transfer', not on '{scene.op.name}'"
            return
        if scene.place != "op" and mpmd.mesh_tensor(scene.type) is None:
            yield f"{cls.name} is on {scene.place} {scene.position}, which is on no mesh"
            return
        if scene.place == "argument" and _kept(scene) == scene.position:
            yield f"{cls.name} is on an argument that is kept where it is read: nothing brings it"
            return
        yield from _messages(cls.name, data)
        if data.get("makespan_s", 0.0) < data.get("bound_s", 0.0) * (1 - 1e-9):
            yield f"{cls.name}: makespan_s {data['makespan_s']:g} is below bound_s {data['bound_s']:g}"
        source, target = _ends(scene)
        shape = shape_of(source.tensor) if source else None
        if source is None or (target is None and scene.place != "result") or shape is None:
            return
        units = data["units"]
        found = list(_alone(cls.name, units, shape, source.tensor))
        covered = sum(_elements(unit["slice"]) for unit in units)
        # Of a result that all devices have already, nothing travels.
        if covered != prod(shape) and (covered or scene.place != "result"):
            found.append(f"{cls.name}: the units hold {covered} elements, but the tensor has {prod(shape)}")
        # Of units that are wrong by themselves the others would only say so again.
        found = found or list(_overlapping(cls.name, units, len(shape)))
        found = found or list(_on_devices(cls.name, units, shape, source, target, scene))
        yield from found[:_SHOWN]


def _kept(scene: Scene) -> int:
    """The position of the first argument that is the same one of the step as that of the scene, which keeps it."""
    arguments = functions.argument_attributes(scene.op)
    given = [str(own.get(RhinoArgument.name, f"{{index = {k} : i64}}")) for k, own in enumerate(arguments)]
    return given.index(given[scene.position])


def _ends(scene: Scene) -> tuple[mpmd.MeshTensor | None, mpmd.MeshTensor | None]:
    """What travels where it is, and where it gets to; that is None for a result, which gets everywhere."""
    if scene.place == "op":
        return mpmd.mesh_tensor(scene.op.operands[0].type), mpmd.mesh_tensor(scene.op.results[0].type)
    here = mpmd.mesh_tensor(scene.type)
    if scene.place == "result":
        return here, None
    return mpmd.mesh_tensor(scene.op.attributes["function_type"].value.inputs[_kept(scene)]), here


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
            sent, nbytes = (
                sum(n for _, n in unit["senders"]),
                _elements(where) * item_bytes(str(ir.RankedTensorType(tensor).element_type)),
            )
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
    name: str,
    units: Sequence[Any],
    shape: list[int],
    source: mpmd.MeshTensor,
    target: mpmd.MeshTensor | None,
    scene: Scene,
) -> Iterator[str]:
    """Whether holders have their units, and receivers lack exactly theirs, where the module says where meshes are.

    Args:
      target: None for all of it on every device of the meshes.
    """
    if any(mesh not in scene.placement for mesh in ([source.mesh, target.mesh] if target else scene.axes)):
        return
    held = tiles_of(source, shape, scene.axes, scene.placement)
    if target is not None:
        needed, there = tiles_of(target, shape, scene.axes, scene.placement), f"mesh '{target.mesh}'"
    else:
        everyone = [device for mesh in scene.axes for device in scene.placement[mesh]]
        needed, there = {device: [[0, size] for size in shape] for device in everyone}, "the step"
    got = dict.fromkeys(needed, 0)
    for i, unit in enumerate(units):
        path, where = f"{name}.units[{i}]", unit["slice"]
        for role, of, tiles in (("holder", f"mesh '{source.mesh}'", held), ("receiver", there, needed)):
            for device in unit[f"{role}s"]:
                if device not in tiles:
                    yield f"{path}: {role} {device} is not a device of {of}"
                elif not _inside(where, tiles[device]):
                    verb = "has" if role == "holder" else "needs"
                    yield f"{path}: {role} {device} {verb} {tiles[device]}, not all of {where}"
        for device in dict.fromkeys(unit["receivers"]):
            if device in got:
                got[device] += _elements(where)
                if device in held and _common(where, held[device]):
                    yield f"{path}: receiver {device} has {held[device]} already"
    for device, elements in got.items():
        lacks = _elements(needed[device]) - (_common(needed[device], held[device]) if device in held else 0)
        if elements != lacks:
            yield f"{name}: device {device} needs {lacks} elements, but its units hold {elements}"


def tiles_of(tensor: mpmd.MeshTensor, shape: Sequence[int], axes: Any, placement: Any) -> dict[int, list[list[int]]]:
    """By device, the slice that it has of a tensor on a mesh."""
    dims = sdy.dims_of(tensor.sharding) if tensor.sharding is not None else ((),) * len(shape)
    slices = sdy.slices(shape, dims, axes.get(tensor.mesh, ()))
    return {
        device: [list(bounds) for bounds in where]
        for device, where in zip(placement[tensor.mesh], slices, strict=False)
    }


def edge_problems(parts: Sequence[tuple[Where, Any]]) -> Iterator[tuple[Where, str]]:
    """What is wrong between what is on one edge, given with its data: orders count through all units."""
    orders: dict[int, None] = {}
    for op, data in parts:
        for unit in data["units"]:
            if unit["order"] in orders:
                yield op, f"{RhinoMulticast.name}: two units of edge '{data['edge']}' have order {unit['order']}"
            orders[unit["order"]] = None
    for op, data in parts[1:]:
        if "hosts" in data:
            yield op, f"{RhinoMulticast.name}: edge '{data['edge']}' has its messages where it is first named, not here"
    missing = next(i for i in count() if i not in orders)
    if missing < len(orders):
        op, data = parts[-1]
        yield op, f"{RhinoMulticast.name}: no unit of edge '{data['edge']}' has order {missing}"


def _elements(where: _Slice) -> int:
    return prod(stop - start for start, stop in where)


def _common(a: _Slice, b: _Slice) -> int:
    """Elements that two slices share."""
    return prod(max(0, min(a1, b1) - max(a0, b0)) for (a0, a1), (b0, b1) in zip(a, b, strict=True))


def _inside(a: _Slice, b: _Slice) -> bool:
    return all(start <= low and high <= stop for (low, high), (start, stop) in zip(a, b, strict=True))
