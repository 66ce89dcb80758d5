"""The rhino dialect's verifier: every `rhino.*` attribute, and what the C++ verifiers of sdy and mpmd let pass.

Owns walking the module once, linear in its operations, and reporting each problem at its operation. What an attribute
must look like is the attribute's own business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Protocol

from jaxlib.mlir import ir

from rhino.dialect import functions, mpmd, sdy
from rhino.dialect.attributes import ATTRIBUTES, RhinoCluster, RhinoMulticast, RhinoPlacement
from rhino.dialect.base import Scene
from rhino.dialect.multicast import Where, edge_problems
from rhino.errors import RhinoError, nearest

_PREFIX = "rhino."


class ErrorLog(Protocol):
    """Where problems go; a PassLog is one."""

    def error(self, where: ir.Operation | ir.Location, message: str, notes: Sequence[str] = ()) -> None:
        """Report one problem."""


def verify(module: ir.Module, log: ErrorLog) -> None:
    """Report every problem of the module to `log`. The module has passed the C++ verifiers."""
    root = module.operation
    meshes = {name: prod(size for _, size in axes) for name, axes in sdy.mesh_axes(module).items()}
    for function in functions.all_functions(module):
        for name, axes in mpmd.topology(function) or ():
            meshes[name] = prod(size for _, size in axes)
    checker = _Checker(log, meshes, _cluster_devices(root), _placement(root, meshes))
    checker.attributes(root, "module")
    for top in module.body.operations:
        op = top.operation
        if op.name == "func.func":
            checker.function(op)
        else:
            checker.attributes(op, "op")
    for transfers in checker.edges.values():
        for op, problem in edge_problems(transfers):
            log.error(op, problem)


def _placement(root: ir.Operation, meshes: Mapping[str, int]) -> Mapping[str, Sequence[int]]:
    """The devices of meshes, of those that have as many as their mesh."""
    try:
        found = RhinoPlacement.of(root) or {}
    except RhinoError:  # reported where the attribute itself is checked
        return {}
    return {name: devices for name, devices in found.items() if len(devices) == meshes.get(name)}


def _cluster_devices(root: ir.Operation) -> int | None:
    try:
        cluster = RhinoCluster.of(root)
    except RhinoError:  # reported where the attribute itself is checked
        return None
    return None if cluster is None else int(cluster["hosts"] * cluster["devices_per_host"])


class _Checker:
    def __init__(
        self,
        log: ErrorLog,
        meshes: Mapping[str, int],
        cluster_devices: int | None,
        placement: Mapping[str, Sequence[int]],
    ) -> None:
        self.log = log
        self.meshes = meshes
        self.cluster_devices = cluster_devices
        self.placement = placement
        self.axes: Mapping[str, Sequence[tuple[str, int]]] = {}  # of the meshes of the function at hand
        self.edges: dict[str, list[tuple[Where, Any]]] = {}  # what is planned together

    def attributes(self, op: ir.Operation, place: str) -> None:
        attributes = op.attributes
        for name in attributes if len(attributes) else ():
            if name.startswith(_PREFIX):
                self.one(name, attributes[name], place, op, None, op.location)

    def one(
        self,
        name: str,
        attribute: ir.Attribute,
        place: str,
        op: ir.Operation,
        value_type: ir.Type | None,
        where: ir.Location,
        position: int = -1,
    ) -> None:
        of = f" ({place} {position})" if position >= 0 else ""
        cls = ATTRIBUTES.get(name)
        if cls is None:
            # Without the prefix, which all names share and which would make any two of them similar.
            words = [known.removeprefix(_PREFIX) for known in ATTRIBUTES]
            close = nearest(name.removeprefix(_PREFIX), words)
            remedy = f"did you mean '{_PREFIX}{close}'?" if close else f"known attributes are {', '.join(ATTRIBUTES)}"
            self.log.error(where, f"unknown attribute '{name}' in the rhino dialect{of}", [remedy])
        elif place not in cls.places:
            wanted = " or ".join(_PLACES[p] for p in cls.places)
            here = f"on '{op.name}'" if place == "op" else f"on {_PLACES[place]}"
            self.log.error(where, f"{name} belongs on {wanted}, not {here}")
        else:
            scene = Scene(op, value_type, self.meshes, self.cluster_devices, self.axes, self.placement, place, position)
            problems = list(cls.problems(attribute, scene))
            for problem in problems:
                self.log.error(where, problem + of)
            if cls is RhinoMulticast and not problems:
                data = cls.from_attr(attribute)
                if "edge" in data:
                    self.edges.setdefault(data["edge"], []).append((op if position < 0 else where, data))

    def function(self, function: ir.Operation) -> None:
        named = mpmd.topology(function) or []
        self.axes = dict(named)
        self.attributes(function, "function")
        known = self.topology(function, [name for name, _ in named])
        kind = function.attributes["function_type"].value
        body = function.regions[0].blocks
        for place, types, given in (
            ("argument", kind.inputs, functions.argument_attributes(function)),
            ("result", kind.results, functions.result_attributes(function)),
        ):
            for i, (value_type, attributes) in enumerate(zip(types, given, strict=True)):
                # An argument has a place of its own in the text; a result has only its function's.
                where = body[0].arguments[i].location if place == "argument" and len(body) else function.location
                for name, attribute in attributes.items():
                    if name.startswith(_PREFIX):
                        self.one(name, attribute, place, function, value_type, where, i)
                self.signature_mesh(value_type, place, i, known, where)
        for op in functions.walk(function):
            self.attributes(op, "op")
            if op.name == "mpmd.transfer":
                self.transfer(op)

    def topology(self, function: ir.Operation, names: list[str]) -> list[str]:
        for name in dict.fromkeys(n for n in names if names.count(n) > 1):
            self.log.error(function, f"topology has two meshes named '{name}'", ["give each mesh its own name"])
        return names

    def signature_mesh(self, value_type: ir.Type, place: str, i: int, known: list[str], where: ir.Location) -> None:
        tensor = mpmd.mesh_tensor(value_type)
        if tensor is not None and tensor.mesh not in known:
            have = f"it has {', '.join(known)}" if known else "the function has no topology"
            self.log.error(where, f"{place} {i} is on mesh '{tensor.mesh}', which is not in the topology", [have])

    def transfer(self, op: ir.Operation) -> None:
        source, target = mpmd.mesh_tensor(op.operands[0].type), mpmd.mesh_tensor(op.results[0].type)
        if source is not None and target is not None and source.mesh == target.mesh:
            message = f"transfer from mesh '{source.mesh}' to itself"
            self.log.error(op, message, ["use a resharding inside a fragment to change the sharding on one mesh"])


_PLACES = {
    "module": "the module",
    "function": "a function",
    "argument": "a function argument",
    "result": "a function result",
    "op": "an operation",
}
