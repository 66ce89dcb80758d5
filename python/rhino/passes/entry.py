"""What rhino passes ask before they start: a function @main with a body and static shapes, and a known cluster.

Owns these checks and their messages.
"""

from __future__ import annotations

from math import prod

from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.errors import RhinoError
from rhino.ir.diagnostics import PassError, PassLog
from rhino.machine import Cluster

_MOST_ELEMENTS = 1 << 60  # bytes are counted in 64 bits
_CONCRETE = "lower the step with concrete shapes"


def main_function(module: ir.Module, pass_name: str) -> ir.Operation:
    """The function @main. Raises PassError at the module, or at @main when it is only declared."""
    main = functions.find(module, "main")
    if main is None:
        have = ", ".join(f"@{functions.name_of(f)}" for f in functions.all_functions(module)) or "no function"
        message = f"'{pass_name}' needs a function @main; the module has {have}"
        raise PassError(module, message, ["name the step function @main, as jax does"])
    if not len(main.regions[0].blocks):
        raise PassError(main, f"'{pass_name}' needs @main to have a body", ["give the module that defines it"])
    return main


def topology_cluster(topology: str, log: PassLog, pass_name: str) -> Cluster:
    """The cluster a pass's `topology` option names, else its session's. Raises RhinoError where there is neither."""
    if not topology:
        if log.session.cluster is not None:
            return log.session.cluster
        raise RhinoError(f"'{pass_name}' needs a topology", "give topology=dgx-h100:1 or another cluster")
    return Cluster.load(topology)


def require_static_shapes(main: ir.Operation, pass_name: str) -> None:
    """Raise PassError where @main takes or returns no tensor, or at the first shape that is dynamic or too large.

    Linear in operations.
    """
    block = main.regions[0].blocks[0]
    boundary = [(f"argument {i}", argument.type) for i, argument in enumerate(block.arguments)]
    boundary += [(f"result {i}", kind) for i, kind in enumerate(main.attributes["function_type"].value.results)]
    for what, kind in boundary:
        if not isinstance(kind, ir.RankedTensorType):
            message = f"'{pass_name}' needs a step of tensors, and {what} of @main is '{kind}'"
            raise PassError(main, message, ["take and return arrays, each as an argument or result of its own"])
    problems: dict[ir.Type, str] = {}

    def problem(value_type: ir.Type) -> str:
        known = problems.get(value_type)
        if known is None:
            shaped = isinstance(value_type, ir.RankedTensorType)
            if shaped and not value_type.has_static_shape:
                known = f"'{pass_name}' needs static shapes, got '{value_type}'"
            elif shaped and prod(value_type.shape) >= _MOST_ELEMENTS:
                known = f"'{value_type}' has more elements than a program can count"
            else:
                known = ""
            problems[value_type] = known
        return known

    for argument in block.arguments:
        if found := problem(argument.type):
            raise PassError(argument.location, found, [_CONCRETE])
    for op in functions.walk(main):
        for result in op.results:
            if found := problem(result.type):
                raise PassError(op, found, [_CONCRETE])
