"""Arguments and results of a step in fragments (rhino-form-fragments), as the user sees them.

Owns putting together what the module has once per device group, or in pieces. Must not know jax.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.dialect.attributes import RhinoArgument
from rhino.dialect.locations import argument_name
from rhino.dialect.mpmd import mesh_tensor, topology
from rhino.dialect.schema import from_attr
from rhino.dialect.sdy import dims_of
from rhino.errors import RhinoError
from rhino.plan import Tensor

Attributes = dict[str, ir.Attribute]


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
            Tensor(name(first, given), role, whole, str(held.tensor.element_type), sharding, tuple(shape), on)
        )
    return tuple(tensors)


def _slice(given: Attributes) -> list[tuple[int, int]]:
    if RhinoArgument.name not in given:
        return []
    return [tuple(bounds) for bounds in RhinoArgument.from_attr(given[RhinoArgument.name]).get("slice", [])]
