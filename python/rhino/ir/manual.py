"""A manual computation as one operation of the graph: the axes it takes, its rule, and what one device does.

Owns what the planner takes from IR of these. How a body is read is the importer's business.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy as sdy_dialect

from rhino.dialect import functions, sdy
from rhino.ir.collectives import KINDS, Axes, moved_dims, sent_over
from rhino.ir.diagnostics import PassError
from rhino.program.bodies import batches, rule_around
from rhino.program.data import Dims, Graph, Manual, Op, Rule, Sent

NAME = "sdy.manual_computation"
MANUAL_MESH = "manual"  # the mesh that a step has of its own, while it is planned
SIDES = ("in_shardings", "out_shardings")


def mesh_name(op: ir.Operation) -> str:
    """The mesh of a manual computation; empty where it reads and makes nothing."""
    for side in SIDES:
        for sharding in sdy_dialect.TensorShardingPerValueAttr(op.attributes[side]).shardings:
            return sdy.mesh_of(sharding)
    return ""


def manual_axes(op: ir.Operation) -> tuple[str, ...]:
    """The axes of which its body sees one device's part."""
    return tuple(sdy_dialect.ManualAxesAttr(op.attributes["manual_axes"]))


def dims_around(op: ir.Operation) -> tuple[list[Dims], list[Dims]]:
    """Axes per dimension of its operands and results."""
    first, second = (
        [sdy.dims_of(s) for s in sdy_dialect.TensorShardingPerValueAttr(op.attributes[side]).shardings]
        for side in SIDES
    )
    return first, second


def around(op: ir.Operation) -> list[ir.Operation]:
    """The manual computations that an operation is in, innermost first."""
    found = []
    at = op.parent
    while at is not None and at.name != "func.func":
        if at.name == NAME:
            found.append(at)
        at = at.parent
    return found


def outermost(function: ir.Operation) -> list[ir.Operation]:
    """The manual computations of a function that are in no other one."""
    found = [op for op in functions.walk(function) if op.name == NAME]
    inside = {inner for op in found for inner in functions.walk(op) if inner.name == NAME}
    return [op for op in found if op not in inside]


def read_manual(op: ir.Operation, body: Graph, ops: list[Any], meshes: Mapping[str, Axes]) -> tuple[Rule, Manual]:
    """The rule and the facts of one.

    Args:
      ops: the operations of its body, as the body numbers them.

    Raises:
      PassError: it takes axes that its mesh has not, or has a collective that cannot be read.
    """
    mesh = meshes.get(mesh_name(op), ())
    sizes = dict(mesh)
    sides = dims_around(op)
    used = {axis for side in sides for dims in side for axes in dims for axis in axes}
    used.update(manual_axes(op), *(manual_axes(inner) for inner in functions.walk(op) if _is_taking(inner)))
    if unknown := sorted(used - set(sizes)):
        raise PassError(
            op,
            f"the manual computation uses axis '{unknown[0]}', but its mesh has {', '.join(sizes) or 'none'}",
            ["use the axes of its mesh, whole"],
        )
    taken = [axis for axis in sizes if axis in used]
    numbers = {axis: i for i, axis in enumerate(taken)}
    split = {axis for side in sides for dims in side for axes in dims for axis in axes}
    local = set(manual_axes(op))
    found = batches(body)
    # An axis that the body does not see splits the batch that a plan gave it.
    given = tuple(
        [[[numbers[axis] for axis in axes if axis in local] for axes in dims] for dims in side] for side in sides
    )
    rule, free = rule_around(body, found, [sizes[axis] for axis in taken], (given[0], given[1]))
    values = [*((a.value, d) for a, d in zip(body.arguments, sides[0], strict=True))]
    values += zip(body.outputs, sides[1], strict=True)
    placed: dict[str, int] = {axis: numbers[axis] if axis in split & local else -1 for axis in taken}
    for v, dims in values:
        for batch, axes in zip(found.places[v], dims, strict=True):
            placed.update({axis: free[batch] for axis in axes if axis not in local and batch >= 0})
    sent = tuple(_sent(body, ops, mesh))
    text = repr(
        [(o.name, o.operands, o.results, o.rule, o.trips, o.flops, o.tag, o.iterations, o.kernel) for o in body.ops]
    )
    shapes = repr([(v.shape, v.dtype) for v in body.values])
    key = hashlib.sha256(f"{text}{shapes}{sent}".encode()).hexdigest()
    places = tuple(tuple(free[b] if b >= 0 else -1 for b in dims) for dims in found.places)
    return rule, Manual(tuple((axis, placed[axis]) for axis in taken), free, key, body, places, sent)


def _is_taking(op: ir.Operation) -> bool:
    """Whether a computation inside splits something; jax asks for a device's place in one that does not."""
    return op.name == NAME and len(op.operands) > 0


def _sent(body: Graph, ops: list[Any], mesh: Axes) -> list[Sent]:
    found = []
    for record, op in zip(body.ops, ops, strict=True):
        if record.manual is not None:
            found += [Sent(record.index, s.kind, s.axes, s.nbytes) for s in record.manual.sent]
        if record.name not in KINDS:
            continue
        kind, axes = KINDS[record.name], sent_over(op, mesh)
        read = sum(body.values[v].nbytes for v in record.operands)
        made = sum(body.values[v].nbytes for v in record.results)
        members = 1
        for name, size in mesh:
            members *= size if name in axes else 1
        whole = {"all-gather": made, "all-to-all": read * members}.get(kind, read)
        found.append(Sent(record.index, kind, axes, whole))
    return found


def collective_rule(op: ir.Operation, record: Op, graph: Graph) -> Rule:
    """The rule of a collective inside: each operand and its result alike, but for dimensions that it cuts."""
    sizes: list[int] = []
    operands, results, whole = [], [], []
    moved = moved_dims(op)
    for v, r in zip(record.operands, record.results, strict=True):
        shape, made = graph.values[v].shape, graph.values[r].shape
        factors = []
        for d, size in enumerate(shape):
            factors.append((len(sizes),))
            if d in moved or made[d] != size:
                whole.append(len(sizes))
            sizes.append(size)
        operands.append(tuple(factors))
        results.append(tuple(factors))
    return Rule(tuple(sizes), tuple(operands), tuple(results), replicate=tuple(whole))
