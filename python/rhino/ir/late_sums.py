"""Sums of gradients in a loop over layers, over devices, a trip later than what is added up.

Owns the rewrite: a layer's gradient, which a trip makes and writes into a stack, is handed to the next trip as what
each device has added up itself. The sum over devices then waits for nothing that this trip computes, and nothing in it
waits for the sum. Which axes of the mesh are worth it is the caller's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import prod
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect import sdy
from rhino.dialect.constants import is_zeros
from rhino.dialect.dots import exchanged, tells_apart
from rhino.dialect.functions import attributes_of, copy_all, end_of, owner_of, walk
from rhino.dialect.loops import widen
from rhino.dialect.reducers import combiners_of, starts_neutral
from rhino.dialect.reductions import together
from rhino.dialect.sdy import SHARDING, overlap
from rhino.ir.layouts import split_by
from rhino.program.operations import PASSING

# What a gradient goes through from its product to its stack. Zeros stay zeros.
_ON_THE_WAY = PASSING | {"sdy.sharding_constraint"}


_Meshes = Mapping[str, Mapping[str, int]]  # sizes of axes, by name of the mesh


@dataclass(frozen=True)
class _Gradient:
    """One stack of a loop, and how a trip makes its layer.

    Attributes:
      position: of the stack among what the loop carries.
      made: the dot or the reduction whose result it is, which adds up over devices.
      way: the operations behind it, in order.
      write: the dynamic_update_slice.
      split: of each operand of `made`, the dimensions that are summed and split, and the axes that do, major first.
      late: these axes in the order in which they are summed over: first those that then divide the result.
      turn: the dimensions of the result in the order in which it is handed on: as it is, or of a dot with its operands
        the other way round, where that has in front what the sum then divides.
    """

    position: int
    made: ir.Operation
    way: tuple[ir.Operation, ...]
    write: ir.Operation
    split: tuple[Mapping[int, tuple[str, ...]], ...]
    late: tuple[str, ...]
    turn: tuple[int, ...]

    @property
    def is_turned(self) -> bool:
        return self.turn != tuple(sorted(self.turn))


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
    write = owner_of(end_of(body).operands[p])
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
    divides = [a for dim in result for a in dim]
    found: list[tuple[tuple[int, ...], tuple[str, ...]]] = []
    for dims in _summed(op):
        read = list(op.operands)[: len(dims)]
        by, *others = [split_by(v)[d] for v, d in zip(read, dims, strict=True)]
        whole = set(by) <= set(sizes) and not any(overlap(a, b, sizes) for a in by for b in divides if a != b)
        if not by or not whole or any(other != by for other in others):
            continue
        if read[0].type.shape[dims[0]] % prod(sizes[a] for a in by) == 0:
            found.append((dims, by))
    over = [a for _, by in found for a in by]
    if not set(over).intersection(axes or over) or _is_sent_alone(op, sizes):
        return None
    late = (*(a for a in divides if a in over), *(a for a in over if a not in divides))
    split = [{dims[k]: by for dims, by in found} for k in range(len(found[0][0]))]
    return _Gradient(p, op, tuple(reversed(way)), write, tuple(split), late, _turn(op, result, late[0]))


def _turn(op: ir.Operation, result: Sequence[Sequence[str]], axis: str) -> tuple[int, ...]:
    """The order of a result's dimensions in which the one that an axis divides comes first, if a dot can make it so.

    What a loop hands on lies as its type says, and of any other dimension it would be turned around first.
    XLA: scattered-outermost
    """
    same = tuple(range(len(result)))
    if op.name != "stablehlo.dot_general":
        return same
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    left = op.operands[0].type.rank - len(numbers.lhs_contracting_dimensions)
    alone = not numbers.lhs_batching_dimensions and left < len(result) and axis in result[left]
    return (*same[left:], *same[:left]) if alone and not tells_apart(op) else same


def _summed(op: ir.Operation) -> list[tuple[int, ...]]:
    """Of each dimension that an operation sums over, where it is in its operands."""
    if op.name == "stablehlo.dot_general":
        numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
        return list(zip(numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions, strict=True))
    if op.name != "stablehlo.reduce" or combiners_of(op) != ("add",):
        return []
    if starts_neutral(op, 0, "add"):
        return [(d,) for d in ir.DenseI64ArrayAttr(op.attributes["dimensions"])]
    return []


def _is_sent_alone(op: ir.Operation, sizes: Mapping[str, int]) -> bool:
    """Whether it is a sum over devices of what was carried here, of which none has more than a part: it waits already.

    Of a bias the gradient adds up rows of what was carried, which waits, too; XLA makes one kernel of it and whatever
    reads these rows last, and what was to be summed first would be summed when the trip ends.
    """
    if op.name != "stablehlo.reduce":
        return False
    v = op.operands[0]
    made, split = v, split_by(v)
    while (owner := owner_of(made)) is not None and (owner.name == "stablehlo.reduce" or owner.name in _ON_THE_WAY):
        made = owner.operands[0]
    summed = [
        v.type.shape[d] // prod(sizes.get(a, 1) for a in split[d])
        for d in ir.DenseI64ArrayAttr(op.attributes["dimensions"])
    ]
    return owner is None and prod(summed) == 1


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
    """The sum over devices, laid out as the result was, whose sharding is given.

    By the axes that divide one dimension of the result at once, dimension by dimension, and then by all others.
    """
    mesh, dims = sdy.mesh_of(result), [sdy.dims_of(result)[d] for d in g.turn]
    left = list(g.late)
    while left:
        divided = next((axes for axes in dims if left[0] in axes), left)
        count = len([*takewhile(divided.__contains__, left)])
        parts, left = together(parts, dims=count), left[count:]
        there = [tuple(a for a in axes if a not in left) for axes in dims]
        _lay_out(parts, mesh, [*((a,) for a in left), *there])
    if g.is_turned:
        parts = stablehlo.TransposeOp(parts, ir.DenseI64ArrayAttr.get([g.turn.index(d) for d in sorted(g.turn)])).result
        _lay_out(parts, mesh, sdy.dims_of(result))
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
        shape = [*(sizes[a] for a in g.late), *(old.shape[d] for d in g.turn)]
        kind = ir.RankedTensorType.get(shape, old.element_type)
        parts = [_SplitOperand.of(v, by, sizes, mesh) for v, by in zip(op.operands, g.split, strict=False)]
        make = _product if op.name == "stablehlo.dot_general" else _reduction
        made = make(op, kind, parts, g)
    kept = [tuple(a for a in axes if a not in g.late) for axes in sdy.dims_of(result)]
    _lay_out(made, mesh, [*((a,) for a in g.late), *(kept[d] for d in g.turn)])
    return made


@dataclass(frozen=True)
class _SplitOperand:
    """An operand whose split dimensions have one of their own for each axis, in front of what is left of them.

    Attributes:
      places: of each axis, its dimension.
      left: of each dimension as it was, where it, or the rest of it, is.
    """

    value: Any
    places: Mapping[str, int]
    left: Sequence[int]

    @classmethod
    def of(cls, v: Any, by: Mapping[int, tuple[str, ...]], sizes: Mapping[str, int], mesh: str) -> _SplitOperand:
        shape: list[int] = []
        split: list[tuple[str, ...]] = []
        places: dict[str, int] = {}
        left: list[int] = []
        for d, (size, axes) in enumerate(zip(v.type.shape, split_by(v), strict=True)):
            for a in by.get(d, ()):
                places[a] = len(shape)
                shape.append(sizes[a])
                split.append((a,))
            left.append(len(shape))
            shape.append(size // prod(sizes[a] for a in by.get(d, ())))
            split.append(() if d in by else axes)
        made = stablehlo.ReshapeOp(ir.RankedTensorType.get(shape, v.type.element_type), v).result
        _lay_out(made, mesh, split)
        return cls(made, places, left)


def _product(op: ir.Operation, kind: ir.Type, read: Sequence[_SplitOperand], g: _Gradient) -> Any:
    """The dot with the axes' dimensions as batches."""
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    sides = [
        (read[0], numbers.lhs_batching_dimensions, numbers.lhs_contracting_dimensions),
        (read[1], numbers.rhs_batching_dimensions, numbers.rhs_contracting_dimensions),
    ]
    attributes = attributes_of(op)
    if g.is_turned:
        sides.reverse()
        attributes = exchanged(attributes)
    batching, contracting = [], []
    for parts, batches, sums in sides:
        batching.append([*(parts.places[a] for a in g.late), *(parts.left[d] for d in batches)])
        contracting.append([parts.left[d] for d in sums])
    attributes["dot_dimension_numbers"] = stablehlo.DotDimensionNumbers.get(*batching, *contracting)
    return ir.Operation.create(op.name, [kind], [parts.value for parts, _, _ in sides], attributes).results[0]


def _reduction(op: ir.Operation, kind: ir.Type, read: Sequence[_SplitOperand], g: _Gradient) -> Any:
    """The reduction without the axes' dimensions, and these in front, in the order of the axes that are summed over."""
    (parts,) = read
    sums = [parts.left[d] for d in ir.DenseI64ArrayAttr(op.attributes["dimensions"])]
    shape = parts.value.type.shape
    left = [d for d in range(len(shape)) if d not in sums]
    between = ir.RankedTensorType.get([shape[d] for d in left], kind.element_type)
    made = stablehlo.ReduceOp([between], [parts.value], [op.operands[1]], ir.DenseI64ArrayAttr.get(sorted(sums)))
    scalar = ir.RankedTensorType.get([], kind.element_type)
    block = made.regions[0].blocks.append(scalar, scalar)
    with ir.InsertionPoint(block):
        stablehlo.ReturnOp([stablehlo.AddOp(*block.arguments).result])
    first = [left.index(parts.places[a]) for a in g.late]
    order = [*first, *(d for d in range(len(left)) if d not in first)]
    if order == sorted(order):
        return made.result
    return stablehlo.TransposeOp(made.result, ir.DenseI64ArrayAttr.get(order)).result
