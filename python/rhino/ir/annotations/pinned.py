"""Layouts that a plan must keep written into a module that is not planned yet, over the plan's mesh.

Owns that, beside what the step has of its own. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxlib.mlir import ir

from rhino.dialect import functions, sdy
from rhino.ir.annotations.adopt import adopt
from rhino.ir.collectives import Axes, find_axes
from rhino.ir.diagnostics import PassLog, Sink
from rhino.ir.meshes import MESH
from rhino.program.data import Dims
from rhino.sharding.meshes import axes_text


def pin_arguments(
    module: ir.Module, mesh: Sequence[tuple[str, int]], layouts: Mapping[int, Dims], annotations: str, sink: Sink
) -> None:
    """Put a plan's mesh, and shardings over it on arguments of @main, into a module.

    Args:
      layouts: axes per dimension by argument.
      annotations: "keep" or "ignore" those of the module; those that the plan's mesh has no axes for are dropped.
      sink: told of these.

    Raises:
      PassError: the module has manual computations over several meshes.
    """

    def unfit(axes: Axes) -> tuple[str, str] | None:
        if find_axes(axes, mesh) >= 0:
            return None
        have = axes_text(tuple(mesh))
        return f"over a mesh {axes_text(tuple(axes))}, and the plan's is {have}", "plan both steps over one mesh"

    adopt(module, PassLog(sink, module), annotations == "keep", unfit)
    sdy.add_mesh(module, MESH, mesh)
    main = functions.find(module, "main")
    assert main is not None
    attributes = functions.argument_attributes(main)
    for i, dims in layouts.items():
        attributes[i][sdy.SHARDING] = sdy.tensor_sharding(module.context, MESH, dims)
    functions.set_argument_attributes(main, attributes)
