"""Arguments and results of a step in fragments (rhino-form-fragments), as the user sees them.

Owns putting together what the module has once per device group, or in pieces. Must not know jax.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.dialect.attributes import RhinoArgument
from rhino.dialect.base import from_attr
from rhino.dialect.locations import argument_name
from rhino.dialect.mpmd import mesh_tensor, topology
from rhino.dialect.sdy import dims_of
from rhino.errors import RhinoError
from rhino.plan.data import Tensor

Attributes = dict[str, ir.Attribute]


@dataclass(frozen=True, slots=True)
class StagePiece:
    """An argument, or rows of it, as one stage keeps it.

    Attributes:
      group: of devices.
      stage: on these devices.
      dims: per dimension, axes of the mesh of one replica.
      mesh: that mesh.
      rows: [start, stop) per leading dimension of the argument; () for all of it.
      shape: of the piece.
    """

    group: int
    stage: int
    dims: tuple[tuple[str, ...], ...]
    mesh: tuple[tuple[str, int], ...]
    rows: tuple[tuple[int, int], ...]
    shape: tuple[int, ...]

    @property
    def place(self) -> tuple[Any, ...]:
        """Alike for pieces of one argument that are on the same devices, whatever their axes are called."""
        sizes = dict(self.mesh)
        numbers = {axis: n for n, axis in enumerate(sizes)}
        parts = (tuple(axis.partition(":") for axis in axes) for axes in self.dims)
        split = tuple(tuple((numbers[a], sub) for a, _, sub in axes if sizes[a] > 1) for axes in parts)
        return self.group, tuple(sizes.values()), split, self.rows


def main_of(module: ir.Module) -> ir.Operation | None:
    """The function @main, None without one."""
    return functions.find(module, "main")


def in_fragments(main: ir.Operation | None) -> bool:
    """Whether a function's arguments live on the meshes of pipeline stages."""
    return main is not None and topology(main) is not None


def pipeline_arguments(main: ir.Operation) -> tuple[Tensor, ...]:
    """The arguments in the original order, each with the groups that hold it or a piece of it."""
    block = main.regions[0].blocks[0]
    attributes = functions.argument_attributes(main)

    def name(i: int, given: Attributes) -> str:
        held = given.get("rhino.name")
        return held.value if held is not None else argument_name(block.arguments[i], i)

    return _together(main, [a.type for a in block.arguments], attributes, name)


def pipeline_results(main: ir.Operation) -> tuple[Tensor, ...]:
    """The results in the original order."""
    types = list(main.attributes["function_type"].value.results)

    def name(i: int, given: Attributes) -> str:
        held = given.get("rhino.name", given.get("jax.result_info"))
        return held.value if held is not None else f"result{i}"

    return _together(main, types, functions.result_attributes(main), name)


def pipeline_pieces(main: ir.Operation, stages: Sequence[int]) -> list[tuple[StagePiece, ...]]:
    """By original argument, its pieces where they are kept: of copies, the first.

    Args:
      stages: by argument of @main, the stage that keeps it.
    """
    meshes = topology(main) or []
    groups = {mesh: g for g, (mesh, _) in enumerate(meshes)}
    found: dict[int, dict[tuple[tuple[int, int], ...], StagePiece]] = {}
    block = main.regions[0].blocks[0]
    for i, (argument, given) in enumerate(zip(block.arguments, functions.argument_attributes(main), strict=True)):
        index = RhinoArgument.from_attr(given[RhinoArgument.name])["index"] if RhinoArgument.name in given else i
        held = mesh_tensor(argument.type)
        assert held is not None
        shape = tuple(held.tensor.shape)
        dims = dims_of(held.sharding) if held.sharding is not None else ((),) * len(shape)
        group, rows = groups[held.mesh], tuple(_slice(given))
        piece = StagePiece(group, stages[i], dims, tuple(meshes[group][1]), rows, shape)
        found.setdefault(index, {}).setdefault(rows, piece)
    return [tuple(found[index].values()) for index in sorted(found)]


def _together(
    main: ir.Operation,
    types: Sequence[Any],
    attributes: Sequence[Attributes],
    name: Callable[[int, Attributes], str],
) -> tuple[Tensor, ...]:
    groups = {mesh: g for g, (mesh, _) in enumerate(topology(main) or ())}
    found: dict[int, list[int]] = {}
    for i, given in enumerate(attributes):
        index = i
        if RhinoArgument.name in given:
            index = RhinoArgument.from_attr(given[RhinoArgument.name])["index"]
        found.setdefault(index, []).append(i)
    tensors = []
    for index in sorted(found):
        parts = found[index]
        first, given = parts[0], attributes[parts[0]]
        held = mesh_tensor(types[first])
        if held is None:
            raise RhinoError(f"argument or result {first} of @main is not on the mesh of a stage")
        shape = list(held.tensor.shape)
        slices = [_slice(attributes[i]) for i in parts]
        for dim, _ in enumerate(slices[0]):
            shape[dim] = max(bounds[dim][1] for bounds in slices)
        sharding = dims_of(held.sharding) if held.sharding is not None else ((),) * len(shape)
        role = given["rhino.role"].value if "rhino.role" in given else ""
        whole = tuple(from_attr(given["rhino.strided"])["shape"]) if "rhino.strided" in given else tuple(shape)
        on = tuple(groups[mesh_tensor(types[i]).mesh] for i in parts)  # type: ignore[union-attr]
        tensors.append(
            Tensor(
                name(first, given),
                role,
                whole,
                str(held.tensor.element_type),
                sharding,
                stored_shape=tuple(shape),
                stages=on,
            )
        )
    return tuple(tensors)


def _slice(given: Attributes) -> list[tuple[int, int]]:
    if RhinoArgument.name not in given:
        return []
    return [tuple(bounds) for bounds in RhinoArgument.from_attr(given[RhinoArgument.name]).get("slice", [])]
