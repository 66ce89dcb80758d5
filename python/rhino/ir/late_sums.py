"""Sums of gradients in a loop over layers, over devices, a trip later than what is added up.

Owns the rewrite: a layer's gradient, which a trip makes and writes into a stack, is handed to the next trip as what
each device has added up itself. The sum over devices then waits for nothing that this trip computes, and nothing in it
waits for the sum. Which axes of the mesh are worth it is the caller's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect import sdy
from rhino.dialect.constants import is_zeros
from rhino.dialect.functions import copy_all, owner_of, walk
from rhino.dialect.loops import attributes_of, widen
from rhino.dialect.reducers import combiners_of, starts_neutral
from rhino.dialect.reductions import together
from rhino.dialect.sdy import SHARDING, overlap
from rhino.ir.layouts import split_by

# What a gradient goes through from its product to its stack. Zeros stay zeros.
_ON_THE_WAY = (
    "stablehlo.convert", "stablehlo.reshape", "stablehlo.transpose", "stablehlo.broadcast_in_dim",
    "sdy.sharding_constraint",
)  # fmt: skip


_Meshes = Mapping[str, Mapping[str, int]]  # sizes of axes, by name of the mesh


@dataclass(frozen=True)
class _Gradient:
    """One stack of a loop, and how a trip makes its layer.

    Attributes:
      position: of the stack among what the loop carries.
      made: the dot or the reduction whose result it is, which adds up over devices.
      way: the operations behind it, in order.
      write: the dynamic_update_slice.
      dims: of each operand of `made`, the dimension that is summed and that the axes split.
      axes: those, major first.
      late: the same in the order in which they are summed over: first those that then divide the result.
    """

    position: int
    made: ir.Operation
    way: tuple[ir.Operation, ...]
    write: ir.Operation
    dims: tuple[int, ...]
    axes: tuple[str, ...]
    late: tuple[str, ...]


def sum_later(module: ir.Module, axes: Sequence[str] = ()) -> int:
    """As rhino-sum-later, in place; returns how many gradients are summed later.

    The first trip adds up zeros, and writes them where a later one writes again; the last sum is behind the loop. So
    a stack must start as zeros, and nothing but its update may read it.

    Args:
      axes: of the mesh, of which a sum must go over one at least; by default any.
    """
    meshes = {name: dict(found) for name, found in sdy.mesh_axes(module).items()}
    changed = 0
    for loop in [op for op in walk(module.operation) if op.name == "stablehlo.while"]:
        found = [g for p in range(len(loop.results)) if (g := _gradient(loop, p, meshes, axes)) is not None]
        if found:
            _rewrite(loop, found, meshes)
            changed += len(found)
    return changed


def _gradient(loop: ir.Operation, p: int, meshes: _Meshes, axes: Sequence[str]) -> _Gradient | None:
    """The gradient that a loop stacks at a position, if sums over the axes are in it."""
    body = loop.regions[1].blocks[0]
    end = body.operations[len(body.operations) - 1].operation
    write = owner_of(end.operands[p])
    stack = body.arguments[p]
    if write is None or write.name != "stablehlo.dynamic_update_slice" or write.operands[0] != stack:
        return None
    if not (_is_read_once(stack) and _is_read_once(write.results[0]) and _starts_as_zeros(loop.operands[p])):
        return None
    way: list[ir.Operation] = []
    made = write.operands[1]
    while (op := owner_of(made)) is not None and _is_on_the_way(op) and _is_read_once(made):
        way.append(op)
        made = op.operands[0]
    if op is None or op.block != body or not _is_read_once(made) or SHARDING not in op.attributes:
        return None
    sharding = sdy.results_of(op)[0]
    result, sizes = sdy.dims_of(sharding), meshes.get(sdy.mesh_of(sharding), {})
    for dims in _summed(op):
        read = list(op.operands)[: len(dims)]
        split = [split_by(v)[d] for v, d in zip(read, dims, strict=True)]
        by = split[0]
        divides = [a for dim in result for a in dim]
        whole = set(by) <= set(sizes) and not any(overlap(a, b, sizes) for a in by for b in divides if a != b)
        if any(other != by for other in split) or not set(by).intersection(axes or by) or not whole:
            continue
        if read[0].type.shape[dims[0]] % prod(sizes[a] for a in by) == 0:
            late = (*(a for a in divides if a in by), *(a for a in by if a not in divides))
            return _Gradient(p, op, tuple(reversed(way)), write, dims, by, late)
    return None


def _summed(op: ir.Operation) -> list[tuple[int, ...]]:
    """Of each dimension that an operation sums over, where it is in its operands."""
    if op.name == "stablehlo.dot_general":
        numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
        return list(zip(numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions, strict=True))
    if op.name != "stablehlo.reduce" or combiners_of(op) != ("add",):
        return []
    made = op
    while made is not None and (made.name == "stablehlo.reduce" or made.name in _ON_THE_WAY):
        made = owner_of(made.operands[0])
    # What was carried here waits for nothing already.
    if made is not None and starts_neutral(op, 0, "add"):
        return [(d,) for d in ir.DenseI64ArrayAttr(op.attributes["dimensions"])]
    return []


def _is_on_the_way(op: ir.Operation) -> bool:
    if op.name == "stablehlo.reduce" and len(op.results) == 1:
        # jax adds up what a broadcast had as its only element, too.
        same = prod(op.operands[0].type.shape) == prod(op.results[0].type.shape)
        start = owner_of(op.operands[1])
        return same and combiners_of(op) == ("add",) and start is not None and is_zeros(start)
    return op.name in _ON_THE_WAY


def _is_read_once(v: Any) -> bool:
    return len(list(v.uses)) == 1


def _starts_as_zeros(v: Any) -> bool:
    op = owner_of(v)
    while op is not None and op.name in ("stablehlo.broadcast_in_dim", "sdy.sharding_constraint"):
        op = owner_of(op.operands[0])
    return op is not None and is_zeros(op)


def _rewrite(loop: ir.Operation, found: Sequence[_Gradient], meshes: _Meshes) -> None:
    layouts = [sdy.results_of(g.made)[0] for g in found]
    local = [_local(g, meshes[sdy.mesh_of(layout)]) for g, layout in zip(found, layouts, strict=True)]
    # Where the trip before wrote, of what is not the same in all.
    body = loop.regions[1].blocks[0]
    where: dict[Any, int] = {}
    for g in found:
        for v in list(g.write.operands)[2:]:
            if (v.owner if (op := owner_of(v)) is None else op.block) == body:
                where.setdefault(v, len(where))
    attributes = attributes_of(loop)
    if SHARDING in attributes:
        mesh = sdy.mesh_of(layouts[0])
        given = [*sdy.results_of(loop), *(sdy.results_of(v.owner.operation)[0] for v in local)]
        whole = [sdy.tensor_sharding(loop.context, mesh, []) for _ in where]
        attributes[SHARDING] = sdy.per_value([*given, *whole], loop.context)
    places = list(where)

    def following(carried: Sequence[Any]) -> list[Any]:
        for g, parts, layout in zip(found, carried, layouts, strict=False):
            with ir.InsertionPoint(g.made), g.made.location:
                total = _total(parts, g, layout)
            g.made.results[0].replace_all_uses_with(total)
            g.made.erase()
            for k, v in enumerate(list(g.write.operands)):
                if k >= 2 and v in where:
                    g.write.operands[k] = carried[len(local) + where[v]]
        return [*local, *places]

    new = widen(loop, [v.type for v in (*local, *places)], following, attributes)
    count = len(loop.results)
    arguments, results = list(new.regions[1].blocks[0].arguments)[count:], list(new.results)[count:]
    for g, parts, layout in zip(found, results, layouts, strict=False):
        stacked = new.results[g.position]
        uses = [(use.owner, use.operand_number) for use in stacked.uses]
        with ir.InsertionPoint(loop), g.write.location:
            first = g.way[0].operands[0] if g.way else g.write.operands[1]
            values = dict(zip(arguments, results, strict=True))
            values |= {first: _total(parts, g, layout), g.write.operands[0]: stacked}
            starts = [start for op in g.way if op.name == "stablehlo.reduce" and (start := owner_of(op.operands[1]))]
            copy_all([*dict.fromkeys(starts), *g.way, g.write], values)
        for owner, number in uses:
            owner.operation.operands[number] = values[g.write.results[0]]
    loop.erase()


def _total(parts: Any, g: _Gradient, result: Any) -> Any:
    """The sum over devices, by one axis after the other; laid out as the result was, whose sharding is given."""
    mesh, dims = sdy.mesh_of(result), sdy.dims_of(result)
    for k in range(len(g.late)):
        left = g.late[k + 1 :]
        parts = together(parts)
        there = [tuple(a for a in axes if a not in left) for axes in dims]
        _lay_out(parts, mesh, [*((a,) for a in left), *there])
    return parts


def _lay_out(value: Any, mesh: str, dims: Sequence[Sequence[str]]) -> None:
    sharding = sdy.tensor_sharding(value.context, mesh, dims)
    value.owner.operation.attributes[SHARDING] = sdy.per_value([sharding], value.context)


def _local(g: _Gradient, sizes: Mapping[str, int]) -> Any:
    """What each device adds up itself: the result with a dimension in front for each axis, in front of the old one."""
    op = g.made
    result = sdy.results_of(op)[0]
    mesh = sdy.mesh_of(result)
    old = op.results[0].type
    with op.context, op.location, ir.InsertionPoint(op):
        kind = ir.RankedTensorType.get([*(sizes[a] for a in g.late), *old.shape], old.element_type)
        read = list(op.operands)[: len(g.dims)]
        split = [_in_parts(v, dim, g, sizes, mesh) for v, dim in zip(read, g.dims, strict=True)]
        make = _product if op.name == "stablehlo.dot_general" else _reduction
        made = make(op, kind, split, g)
    _lay_out(
        made, mesh, [*((a,) for a in g.late), *(tuple(a for a in d if a not in g.late) for d in sdy.dims_of(result))]
    )
    return made


def _product(op: ir.Operation, kind: ir.Type, split: Sequence[Any], g: _Gradient) -> Any:
    """The dot with the axes' dimensions as batches."""
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    batching, contracting = [], []
    for dim, batches, sums in zip(
        g.dims,
        (numbers.lhs_batching_dimensions, numbers.rhs_batching_dimensions),
        (numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions),
        strict=True,
    ):
        parts, rest = _places(dim, g)
        batching.append([*parts, *(_behind(d, dim, g) for d in batches)])
        contracting.append([rest if d == dim else _behind(d, dim, g) for d in sums])
    attributes = attributes_of(op)
    attributes["dot_dimension_numbers"] = stablehlo.DotDimensionNumbers.get(*batching, *contracting)
    return ir.Operation.create(op.name, [kind], list(split), attributes).results[0]


def _reduction(op: ir.Operation, kind: ir.Type, split: Sequence[Any], g: _Gradient) -> Any:
    """The reduction without the axes' dimensions, and these in front, in the order of the axes that are summed over."""
    (dim,), (parts,) = g.dims, split
    sums = [
        _places(dim, g)[1] if d == dim else _behind(d, dim, g)
        for d in ir.DenseI64ArrayAttr(op.attributes["dimensions"])
    ]
    left = [d for d in range(len(parts.type.shape)) if d not in sums]
    between = ir.RankedTensorType.get([parts.type.shape[d] for d in left], kind.element_type)
    made = stablehlo.ReduceOp([between], [parts], [op.operands[1]], ir.DenseI64ArrayAttr.get(sorted(sums)))
    scalar = ir.RankedTensorType.get([], kind.element_type)
    block = made.regions[0].blocks.append(scalar, scalar)
    with ir.InsertionPoint(block):
        stablehlo.ReturnOp([stablehlo.AddOp(*block.arguments).result])
    first = [left.index(d) for d in _places(dim, g)[0]]
    order = [*first, *(d for d in range(len(left)) if d not in first)]
    if order == sorted(order):
        return made.result
    return stablehlo.TransposeOp(made.result, ir.DenseI64ArrayAttr.get(order)).result


def _places(dim: int, g: _Gradient) -> tuple[list[int], int]:
    """Of a dimension in parts, those of the axes in the order in which they are summed over, and that of the rest."""
    return [dim + g.axes.index(a) for a in g.late], dim + len(g.axes)


def _behind(d: int, dim: int, g: _Gradient) -> int:
    """Another dimension beside one in parts."""
    return d if d < dim else d + len(g.axes)


def _in_parts(v: Any, dim: int, g: _Gradient, sizes: Mapping[str, int], mesh: str) -> Any:
    """An operand whose dimension has one of its own for each axis."""
    shape, split = list(v.type.shape), split_by(v)
    parts = [sizes[a] for a in g.axes]
    rest = shape[dim] // prod(parts)
    kind = ir.RankedTensorType.get([*shape[:dim], *parts, rest, *shape[dim + 1 :]], v.type.element_type)
    made = stablehlo.ReshapeOp(kind, v).result
    _lay_out(made, mesh, [*split[:dim], *((a,) for a in g.axes), (), *split[dim + 1 :]])
    return made
