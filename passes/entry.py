"""What rhino passes ask before they start: a function @main with a body and static shapes, and a known cluster.

Owns these checks and their messages.
"""

from __future__ import annotations

from jaxlib.mlir import ir

from rhino.cluster import Cluster
from rhino.dialect import functions
from rhino.errors import RhinoError
from rhino.passes.diagnostics import PassError


def main_function(module: ir.Module, pass_name: str) -> ir.Operation:
    """The function @main. Raises PassError at the module, or at @main when it is only declared."""
    main = functions.find(module, "main")
    if main is None:
        have = ", ".join(f"@{functions.name_of(f)}" for f in functions.all_functions(module)) or "no function"
        message = f"'{pass_name}' needs a function @main; the module has {have}"
        raise PassError(module, message, ["name the step function @main, as jax does"])
    if not len(main.regions[0].blocks):
        raise PassError(main, f"'{pass_name}' needs @main to have a body")
    return main


def topology_cluster(topology: str, pass_name: str) -> Cluster:
    """The cluster a pass's `topology` option names. Raises RhinoError when it is empty or names none."""
    if not topology:
        raise RhinoError(f"'{pass_name}' needs a topology", "give topology=dgx-h100:1 or another cluster")
    return Cluster.load(topology)


def require_static_shapes(main: ir.Operation, pass_name: str) -> None:
    """Raise PassError at the first argument or operation of @main with a dynamic shape. Linear in operations."""
    dynamic: dict[ir.Type, bool] = {}

    def is_dynamic(value_type: ir.Type) -> bool:
        known = dynamic.get(value_type)
        if known is None:
            shaped = isinstance(value_type, ir.RankedTensorType)
            known = dynamic[value_type] = shaped and not value_type.has_static_shape
        return known

    def refuse(where: ir.Operation | ir.Location, value_type: ir.Type) -> PassError:
        message = f"'{pass_name}' needs static shapes, got '{value_type}'"
        return PassError(where, message, ["lower the step with concrete shapes"])

    for argument in main.regions[0].blocks[0].arguments:
        if is_dynamic(argument.type):
            raise refuse(argument.location, argument.type)
    for op in functions.walk(main):
        for result in op.results:
            if is_dynamic(result.type):
                raise refuse(op, result.type)
