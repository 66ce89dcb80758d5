"""The members of mpmd's types and attributes, for which jaxlib has no accessors: they are read from the printed form.

Owns that parsing, once, in one place. Builders go through MLIR's own parser, so what they return is always well formed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from rhino.dialect import sdy

TOPOLOGY = "topology"
_MESH_TENSOR = re.compile(
    r'!mpmd\.mesh_tensor<"(?P<mesh>[^"]*)", (?P<tensor>tensor<[^>]*(?:<[^>]*>[^>]*)*>)'
    r"(?:, sharding=(?P<sharding><.*>))?"
    r'(?:, memory_kind="(?P<kind>[^"]*)")?>'
)
_NAMED_MESH = re.compile(r'<"(?P<name>[^"]*)" : (?P<mesh><\[[^\]]*\](?:, device_ids=\[[^\]]*\])?>)>')


@dataclass(frozen=True, slots=True)
class MeshTensor:
    """The members of `!mpmd.mesh_tensor`: mesh name, global tensor type, and the sharding and memory kind if given."""

    mesh: str
    tensor: ir.Type
    sharding: ir.Attribute | None = None
    memory_kind: str | None = None

    def to_type(self, context: ir.Context) -> ir.Type:
        """The MLIR type. Raises ir.MLIRError when the members disagree (rank, axes, divisibility)."""
        text = f'!mpmd.mesh_tensor<"{self.mesh}", {self.tensor}'
        if self.sharding is not None:
            text += f", sharding={str(self.sharding).removeprefix('#sdy.sharding')}"
        if self.memory_kind is not None:
            text += f', memory_kind="{self.memory_kind}"'
        return ir.Type.parse(text + ">", context)


def tensor_of(value_type: ir.Type) -> MeshTensor:
    """The members of a type that is a mesh tensor's."""
    held = mesh_tensor(value_type)
    assert held is not None, f"{value_type} is not on a mesh"
    return held


def mesh_tensor(value_type: ir.Type) -> MeshTensor | None:
    """The members of a mesh tensor type, or None for any other type."""
    text = str(value_type)
    if not text.startswith("!mpmd.mesh_tensor<"):
        return None
    found = _MESH_TENSOR.fullmatch(text)
    if found is None:
        raise ValueError(f"cannot read {text}")
    context = value_type.context
    sharding = found["sharding"]
    return MeshTensor(
        found["mesh"],
        ir.Type.parse(found["tensor"], context),
        ir.Attribute.parse(f"#sdy.sharding{sharding}", context) if sharding else None,
        found["kind"],
    )


def topology(function: ir.Operation) -> list[tuple[str, list[tuple[str, int]]]] | None:
    """The meshes of a function's `#mpmd.topology`, as (name, [(axis, size), ...]) in order; None without one.

    A list, not a dictionary: MLIR accepts a mesh name twice, and the verifier must see that.
    """
    if TOPOLOGY not in function.attributes:
        return None
    text, context = str(function.attributes[TOPOLOGY]), function.context
    return [
        (found["name"], sdy.axes_of_mesh(ir.Attribute.parse(f"#sdy.mesh{found['mesh']}", context)))
        for found in _NAMED_MESH.finditer(text)
    ]


def make_topology(meshes: Mapping[str, Sequence[tuple[str, int]]], context: ir.Context) -> ir.Attribute:
    """`#mpmd.topology` with the given meshes, in order."""
    parts = []
    for name, axes in meshes.items():
        listed = ", ".join(f'"{axis}"={size}' for axis, size in axes)
        parts.append(f'<"{name}": <[{listed}]>>')
    return ir.Attribute.parse(f"#mpmd.topology<{', '.join(parts)}>", context)
