"""The collectives of a manual computation: over which axes of its mesh they send, and the same over a larger mesh.

Owns reading and writing their groups of devices, which name devices by their number in the mesh.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect import functions
from rhino.ir.diagnostics import PassError

# By operation, what a cost model calls it.
KINDS = {
    "stablehlo.all_reduce": "all-reduce",
    "stablehlo.all_gather": "all-gather",
    "stablehlo.reduce_scatter": "reduce-scatter",
    "stablehlo.all_to_all": "all-to-all",
    "stablehlo.collective_permute": "collective-permute",
    "stablehlo.collective_broadcast": "collective-permute",
}
# One in the text of groups that are named by axes: their attributes are not in all versions.
_AXIS = re.compile(r'axis_ref<name = "([^"]+)"')
_GROUPS, _PAIRS = "replica_groups", "source_target_pairs"
# Dimensions that a collective cuts or puts together.
_MOVED = ("all_gather_dim", "scatter_dimension", "split_dimension", "concat_dimension")

Axes = Sequence[tuple[str, int]]


def sent_over(op: ir.Operation, mesh: Axes) -> tuple[str, ...]:
    """The axes along which the members of a collective's groups differ, in the order of the mesh."""
    sizes = [size for _, size in mesh]
    strides = [prod(sizes[i + 1 :]) for i in range(len(sizes))]
    differ = [False] * len(sizes)
    for group in groups_of(op, prod(sizes)):
        for a, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
            differ[a] |= len({device // stride % size for device in group}) > 1
    return tuple(name for (name, _), moved in zip(mesh, differ, strict=True) if moved)


def moved_dims(op: ir.Operation) -> tuple[int, ...]:
    """The dimensions that a collective cuts or puts together."""
    return tuple(op.attributes[name].value for name in _MOVED if name in op.attributes)


def groups_of(op: ir.Operation, devices: int) -> list[list[int]]:
    """The groups of a collective; the pairs of a permutation. Raises PassError where they are not listed."""
    name = _PAIRS if _PAIRS in op.attributes else _GROUPS
    given = op.attributes[name]
    try:
        listed = ir.DenseIntElementsAttr(given)
    except ValueError:
        remedy = "write it as dense<[[0, 1]]>"
        raise PassError(op, f"{name} of '{op.name}' is not a list of devices", [remedy]) from None
    rows, width = ir.RankedTensorType(listed.type).shape
    numbers = [int(n) for n in listed]
    if len(numbers) == 1:
        numbers *= rows * width
    groups = [[n for n in numbers[i * width : (i + 1) * width] if n >= 0] for i in range(rows)]
    if any(n >= devices for group in groups for n in group):
        most = max(n for group in groups for n in group)
        raise PassError(op, f"'{op.name}' names device {most} of a mesh of {devices}", ["number devices from 0"])
    return groups if groups or name == _PAIRS else [list(range(devices))]


def list_groups(op: ir.Operation, mesh: Axes) -> None:
    """Writes the groups of a collective as lists of devices where they are named by axes, as newer versions of jax do.

    Raises:
      PassError: they are named by parts of axes.
    """
    if op.name not in KINDS or _GROUPS not in op.attributes:
        return
    text = str(op.attributes[_GROUPS])
    if "mesh_axes" not in text:
        return
    named = _AXIS.findall(text)
    sizes = dict(mesh)
    if "sub_axis" in text or not set(named) <= set(sizes):
        raise PassError(
            op, f"'{op.name}' has groups that are not those of whole axes", ["list them as dense<[[0, 1]]>"]
        )
    others = [name for name, _ in mesh if name not in named]
    strides = {name: prod(size for _, size in mesh[i + 1 :]) for i, (name, _) in enumerate(mesh)}

    def numbers(names: Sequence[str]) -> list[int]:
        places = product(*(range(sizes[name]) for name in names))
        return [sum(at * strides[name] for at, name in zip(place, names, strict=True)) for place in places]

    _write(op, _GROUPS, [[first + within for within in numbers(named)] for first in numbers(others)])


@dataclass(frozen=True, slots=True)
class Placed:
    """Where the devices of a mesh are in a larger one, in which its axes stand next to each other.

    Attributes:
      devices: of the mesh.
      outer, inner: of the axes in front of and behind them.
    """

    devices: int
    outer: int
    inner: int

    @classmethod
    def of(cls, mesh: Axes, larger: Axes) -> Placed | None:
        """None if the axes of the mesh do not follow each other there."""
        start = find_axes(mesh, larger)
        if start < 0:
            return None
        sizes = [size for _, size in larger]
        return cls(prod(n for _, n in mesh), prod(sizes[:start]), prod(sizes[start + len(mesh) :]))

    def copies(self, groups: Sequence[Sequence[int]]) -> list[list[int]]:
        """The groups, once for each place of the other axes."""
        return [
            [(o * self.devices + device) * self.inner + i for device in group]
            for o in range(self.outer)
            for group in groups
            for i in range(self.inner)
        ]


def find_axes(mesh: Axes, larger: Axes) -> int:
    """Where the axes of a mesh stand in a larger one, next to each other and in their order; -1 if they do not."""
    wanted, there = list(mesh), list(larger)
    return next((i for i in range(len(there) - len(wanted) + 1) if there[i : i + len(wanted)] == wanted), -1)


def spread_groups(op: ir.Operation, placed: Placed) -> None:
    """Makes a collective one of the larger mesh."""
    name = _PAIRS if _PAIRS in op.attributes else _GROUPS
    groups = placed.copies(groups_of(op, placed.devices))
    _write(op, name, groups)


def _write(op: ir.Operation, name: str, groups: Sequence[Sequence[int]]) -> None:
    width = max(map(len, groups), default=2)
    with op.context, op.location:
        i64 = ir.IntegerType.get_signless(64)
        kind = ir.RankedTensorType.get([len(groups), width], i64)
        numbers = [ir.IntegerAttr.get(i64, n) for group in groups for n in (*group, *[-1] * (width - len(group)))]
        op.attributes[name] = (
            ir.DenseElementsAttr.get(numbers, kind) if numbers else ir.Attribute.parse(f"dense<> : {kind}")
        )


def number_channels(module: ir.Module) -> None:
    """Gives every collective a channel of its own: programs that were lowered one by one number theirs alike."""
    number = 0
    for function in functions.all_functions(module):
        for op in functions.walk(function):
            if op.name in KINDS and "channel_handle" in op.attributes:
                number += 1
                kind: Any = stablehlo.ChannelHandle(op.attributes["channel_handle"]).channel_type
                op.attributes["channel_handle"] = stablehlo.ChannelHandle.get(number, kind, module.context)
