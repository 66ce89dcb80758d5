"""How the values of an annotated program are laid out: of results, arguments, and what regions are given.

Owns finding the sharding of a value wherever it stands, and what a mesh's axes are. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from jaxlib.mlir import ir

from rhino.dialect import functions, mpmd, sdy
from rhino.program.data import Dims
from rhino.program.operations import CONSTRAINTS


@dataclass(frozen=True, slots=True)
class NamedMesh:
    """A mesh of the module: its name, and (axis, size) pairs, outermost first."""

    name: str
    axes: tuple[tuple[str, int], ...]

    def ways(self, axes: Sequence[str]) -> int:
        """Into how many parts these axes, or parts of axes, split a dimension."""
        sizes = dict(self.axes)
        return prod(sdy.axis_size(axis, sizes) for axis in axes)

    def groups(self, axes: Sequence[str]) -> list[list[int]]:
        """The devices that differ along these axes only, group by group; devices are numbered row-major."""
        names = [name for name, _ in self.axes]
        sizes = [size for _, size in self.axes]
        strides = [prod(sizes[i + 1 :]) for i in range(len(sizes))]
        found: dict[int, list[int]] = {}
        for device in range(prod(sizes)):
            inside = sum(
                device // stride % size * stride
                for name, size, stride in zip(names, sizes, strides, strict=True)
                if name in axes
            )
            found.setdefault(device - inside, []).append(device)
        return list(found.values())


def sharding_of(value: Any) -> ir.Attribute | None:
    """The sharding of a value, None where nothing says it."""
    if isinstance(value.owner, ir.Block):
        return _of_argument(value)
    op = value.owner.operation
    position = value.result_number if hasattr(value, "result_number") else list(op.results).index(value)
    if op.name in CONSTRAINTS:
        return op.attributes["sharding"]
    return sdy.results_of(op)[position]


def split_by(value: Any) -> Dims:
    """The axes that split each dimension of a value; none where nothing says it."""
    sharding = sharding_of(value)
    return sdy.dims_of(sharding) if sharding is not None else ((),) * len(value.type.shape)


def _of_argument(value: Any) -> ir.Attribute | None:
    parent = value.owner.owner.operation
    position = value.arg_number
    if parent.name == "func.func":
        return functions.argument_attributes(parent)[position].get(sdy.SHARDING)
    if parent.name == "stablehlo.while":
        return sdy.results_of(parent)[position]
    if parent.name == "mpmd.fragment":
        tensor = mpmd.mesh_tensor(parent.operands[position].type)
        return None if tensor is None else tensor.sharding
    return None


class ModuleLayouts:
    """Shardings of a module's values as axes per dimension, read once for the arguments of functions."""

    def __init__(self, module: ir.Module) -> None:
        self.meshes: Mapping[str, NamedMesh] = {
            name: NamedMesh(name, tuple(axes)) for name, axes in sdy.mesh_axes(module).items() if axes
        }

    def of(self, value: Any) -> tuple[str, Dims] | None:
        """The mesh and the axes per dimension of a value; None where nothing says it."""
        sharding = sharding_of(value)
        if sharding is None or sdy.mesh_of(sharding) not in self.meshes:
            return None
        return sdy.mesh_of(sharding), sdy.dims_of(sharding)
