"""Operations in a fragment of one mesh, where stages have several: what is said of the other meshes is left out.

Owns that rewriting. Which layout a value has on which mesh is in `fragment_layouts`.
"""

from __future__ import annotations

from typing import Any

from jaxlib.mlir import ir

from rhino.dialect import functions, sdy
from rhino.dialect.attributes import RhinoLayouts
from rhino.ir.fragments.layouts import layout_on
from rhino.program.operations import CONSTRAINTS


def keep_mesh(op: Any, mesh: str) -> None:
    """Give an operation, and those in its regions, the shardings that they have over a mesh, and no others."""
    for inner in list(functions.walk(op)):
        if inner.name in CONSTRAINTS and sdy.mesh_of(inner.attributes["sharding"]) != mesh:
            inner.results[0].replace_all_uses_with(inner.operands[0])
            inner.erase()
    for inner in (op, *functions.walk(op)):
        given = [layout_on(inner, position, mesh) for position in range(len(inner.results))]
        if sdy.SHARDING in inner.attributes and any(dims is None for dims in given):
            del inner.attributes[sdy.SHARDING]
        if RhinoLayouts.name in inner.attributes:
            if any(given) and inner.name != "sdy.manual_computation":
                shardings = [_sharding(v, dims, mesh) for v, dims in zip(inner.results, given, strict=True)]
                inner.attributes[sdy.SHARDING] = sdy.per_value(shardings, inner.context)
            del inner.attributes[RhinoLayouts.name]


def _sharding(value: Any, dims: Any, mesh: str) -> ir.Attribute:
    """A sharding as it was given, or, where any will do, an open one."""
    rank = len(value.type.shape)
    return sdy.tensor_sharding(value.context, mesh, ((),) * rank if dims is None else dims, open=dims is None)
