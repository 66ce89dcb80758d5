"""Shardings, meshes and their axes as plain Python, and back: in Shardy's bindings they are nested attribute objects.

Owns the conversion. Dimensions are tuples of axis texts, major first; an axis text is `x`, or `x:(1)2` for a sub-axis.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from rhino.dialect import functions

_SUB_AXIS = re.compile(r"(?P<name>.+):\((?P<pre>\d+)\)(?P<size>\d+)")
SHARDING = "sdy.sharding"


def tensor_sharding(
    context: ir.Context,
    mesh_name: str,
    dims: Sequence[Sequence[str]],
    open: bool | Sequence[bool] = False,
    replicated: Sequence[str] = (),
) -> ir.Attribute:
    """`#sdy.sharding<@mesh, [{"x"}, {}]>` with one list of axis texts per dimension; closed, or open as told."""
    opened = [open] * len(dims) if isinstance(open, bool) else open
    with context:
        given = [_dimension(axes, is_open) for axes, is_open in zip(dims, opened, strict=True)]
        return sdy.TensorShardingAttr.get(mesh_name, given, [_axis(axis) for axis in replicated])


def per_value(shardings: Sequence[ir.Attribute], context: ir.Context) -> ir.Attribute:
    """`#sdy.sharding_per_value<[...]>`, the form an operation carries: one sharding per result."""
    with context:
        return sdy.TensorShardingPerValueAttr.get(shardings)


def _dimension(axes: Sequence[str], open: bool) -> ir.Attribute:
    return sdy.DimensionShardingAttr.get([_axis(axis) for axis in axes], not open)


def _axis(text: str) -> ir.Attribute:
    if found := _SUB_AXIS.fullmatch(text):
        return sdy.AxisRefAttr.get(found["name"], sdy.SubAxisInfoAttr.get(int(found["pre"]), int(found["size"])))
    return sdy.AxisRefAttr.get(text)


def dims_of(sharding: ir.Attribute) -> tuple[tuple[str, ...], ...]:
    """The axes of each dimension of a `#sdy.sharding`."""
    dims = sdy.TensorShardingAttr(sharding).dimension_shardings
    return tuple(tuple(map(_axis_text, sdy.DimensionShardingAttr(dim).axes)) for dim in dims)


def closed_dims(sharding: ir.Attribute) -> tuple[bool, ...]:
    """Whether each dimension is closed, that is, whether propagation may not add axes to it."""
    dims = sdy.TensorShardingAttr(sharding).dimension_shardings
    return tuple(sdy.DimensionShardingAttr(dim).is_closed for dim in dims)


def unreduced_axes(sharding: ir.Attribute) -> tuple[str, ...]:
    """The axes over which the tensor is a partial sum still to be reduced."""
    return tuple(map(_axis_text, sdy.TensorShardingAttr(sharding).unreduced_axes))


def replicated_axes(sharding: ir.Attribute) -> tuple[str, ...]:
    """The axes over which the tensor must stay replicated."""
    return tuple(map(_axis_text, sdy.TensorShardingAttr(sharding).replicated_axes))


def sharding_rule(
    sizes: Sequence[int],
    operands: Sequence[Sequence[Sequence[int]]],
    results: Sequence[Sequence[Sequence[int]]],
    reduction: Sequence[int] = (),
    replicate: Sequence[int] = (),
    permutation: Sequence[int] = (),
) -> ir.Attribute:
    """`#sdy.op_sharding_rule`, in the context at hand: per operand, result and dimension the factors, major first."""

    def mapped(side: Sequence[Sequence[Sequence[int]]]) -> list[ir.Attribute]:
        return [sdy.TensorMappingAttr.get([sdy.DimMappingAttr.get(list(dim)) for dim in m]) for m in side]

    return sdy.OpShardingRuleAttr.get(
        list(sizes), mapped(operands), mapped(results), list(reduction), list(replicate), list(permutation), [], True
    )


def mesh_of(sharding: ir.Attribute) -> str:
    """The name of the mesh a sharding refers to; empty if the mesh is written inline."""
    reference = sdy.TensorShardingAttr(sharding).mesh_or_ref
    return str(reference.value) if isinstance(reference, ir.FlatSymbolRefAttr) else ""


def _axis_text(attribute: ir.Attribute) -> str:
    axis = sdy.AxisRefAttr(attribute)
    if axis.sub_axis_info is None:
        return str(axis.name)
    sub = sdy.SubAxisInfoAttr(axis.sub_axis_info)
    return f"{axis.name}:({sub.pre_size}){sub.size}"


def axis_size(axis: str, sizes: Mapping[str, int]) -> int:
    """The number of shards an axis text makes, given the sizes of the mesh's axes."""
    found = _SUB_AXIS.fullmatch(axis)
    return int(found["size"]) if found else sizes.get(axis, 1)


def slices(
    shape: Sequence[int], dims: Sequence[Sequence[str]], axes: Sequence[tuple[str, int]]
) -> Iterator[tuple[tuple[int, int], ...]]:
    """By device of a mesh, row-major, the [start, stop) per dimension that it has of a tensor whose sizes divide.

    Args:
      dims: axis texts by dimension, major first.
      axes: of the mesh, outermost first.
    """
    sizes = dict(axes)
    cuts = [[(name.split(":")[0], *sub_axis(name, sizes)) for name in names] for names in dims]
    widths = [-(-size // prod(parts for _, parts, _ in cut)) for size, cut in zip(shape, cuts, strict=True)]
    for place in product(*(range(size) for _, size in axes)):
        at = dict(zip(sizes, place, strict=True))
        found = []
        for size, width, cut in zip(shape, widths, cuts, strict=True):
            part = 0
            for name, parts, stride in cut:
                part = part * parts + at[name] // stride % parts
            found.append((min(size, part * width), min(size, (part + 1) * width)))
        yield tuple(found)


def sub_axis(axis: str, sizes: Mapping[str, int]) -> tuple[int, int]:
    """Parts that an axis text makes, and how many devices of the whole axis follow each other in one."""
    found = _SUB_AXIS.fullmatch(axis)
    if found is None:
        return sizes[axis], 1
    size = int(found["size"])
    return size, sizes[found["name"]] // (int(found["pre"]) * size)


def overlap(axis: str, other: str, sizes: Mapping[str, int]) -> bool:
    """Whether two axis texts have a part of one axis in common."""
    if axis.split(":")[0] != other.split(":")[0]:
        return False
    (size, after), (other_size, other_after) = sub_axis(axis, sizes), sub_axis(other, sizes)
    return after < other_after * other_size and other_after < after * size


def results_of(op: ir.Operation) -> list[ir.Attribute | None]:
    """The sharding of each result of an operation, None where it has none."""
    if op.name == "sdy.manual_computation":
        return list(sdy.TensorShardingPerValueAttr(op.attributes["out_shardings"]).shardings)
    if SHARDING not in op.attributes:
        return [None] * len(op.results)
    return list(sdy.TensorShardingPerValueAttr(op.attributes[SHARDING]).shardings)


def add_mesh(module: ir.Module, name: str, axes: Sequence[tuple[str, int]]) -> None:
    """Put `sdy.mesh @name = <["x"=2, ...]>` in front of the module's operations; axes from outermost to innermost."""
    with module.context, ir.Location.unknown(), ir.InsertionPoint.at_block_begin(module.body):
        mesh = sdy.MeshAttr.get([sdy.MeshAxisAttr.get(axis, size) for axis, size in axes])
        sdy.MeshOp(name, mesh)


def rename_mesh(module: ir.Module, old: str, new: str) -> None:
    """Give a mesh another name, which no other mesh of the module may have."""
    for op in [view.operation for view in module.body.operations]:
        if op.name == "sdy.mesh" and op.attributes["sym_name"].value == old:
            op.attributes["sym_name"] = ir.StringAttr.get(new, module.context)
        for inner in (op, *functions.walk(op)):
            rename_mesh_on(inner, old, new)


def rename_mesh_on(op: ir.Operation, old: str, new: str) -> None:
    """Have the shardings of one operation be over another mesh."""
    text = re.compile(rf"<@{re.escape(old)}(?=[,>])")
    for name in list(op.attributes):
        attribute = op.attributes[name]
        if not isinstance(attribute, ir.DenseElementsAttr) and text.search(found := str(attribute)):
            op.attributes[name] = ir.Attribute.parse(text.sub(f"<@{new}", found), op.context)


def axes_of_mesh(mesh: ir.Attribute) -> list[tuple[str, int]]:
    """The (name, size) pairs of a `#sdy.mesh`, outermost first."""
    return [(axis.name, axis.size) for axis in map(sdy.MeshAxisAttr, sdy.MeshAttr(mesh).axes)]


def mesh_axes(module: ir.Module) -> dict[str, list[tuple[str, int]]]:
    """Every `sdy.mesh` of the module by name, with its (axis, size) pairs, in the order of the text."""
    return {
        op.attributes["sym_name"].value: axes_of_mesh(op.attributes["mesh"])
        for op in module.body.operations
        if op.operation.name == "sdy.mesh"
    }


def shape_of(kind: ir.Type) -> tuple[int, ...]:
    """The dimensions that a sharding of a value has: none of a token or a tuple, as of a scalar."""
    return tuple(kind.shape) if isinstance(kind, ir.RankedTensorType) else ()


def sharded_values(module: ir.Module) -> Iterator[tuple[ir.Operation, tuple[int, ...], ir.Attribute]]:
    """Each sharding with the shape of its value and its op: the function, for those of arguments and results."""
    for function in functions.all_functions(module):
        kind = function.attributes["function_type"].value
        for types, attributes in (
            (kind.inputs, functions.argument_attributes(function)),
            (kind.results, functions.result_attributes(function)),
        ):
            for value_type, given in zip(types, attributes, strict=True):
                if SHARDING in given:
                    yield function, shape_of(value_type), given[SHARDING]
        for op in functions.walk(function):
            if SHARDING in op.attributes:
                for result, sharding in zip(op.results, results_of(op), strict=False):
                    if sharding is not None:
                        yield op, shape_of(result.type), sharding
