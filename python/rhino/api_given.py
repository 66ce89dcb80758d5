"""A plan that the user brings, usually from a file: whether it fits the function, and what it fixes.

Owns these checks. Knows nothing of how files are read.
"""

from __future__ import annotations

from jaxlib.mlir import ir

from rhino.api_trace import Trace
from rhino.cluster import Cluster
from rhino.dialect import functions
from rhino.errors import RhinoError
from rhino.plan import Plan, Tensor

_REMEDY = "plan again for these arguments, without plan="


def check_fits(plan: Plan, trace: Trace, module: ir.Module, cluster: Cluster) -> None:
    """Raise RhinoError naming the first argument in which the plan and the function differ, or the device counts."""
    if plan.devices != cluster.num_devices:
        raise RhinoError(
            f"the plan is for {plan.devices} devices, and cluster {cluster.name} has {cluster.num_devices}", _REMEDY
        )
    main = functions.find(module, "main")
    assert main is not None
    types = main.attributes["function_type"].value.inputs
    for leaf, kind, tensor in zip(trace.leaves, types, plan.arguments, strict=False):
        shape, dtype = tuple(kind.shape), str(kind.element_type)
        if leaf.name != tensor.name:
            raise RhinoError(
                f"the plan is of another function: it has {tensor.name} where this has {leaf.name}", _REMEDY
            )
        if (shape, dtype) != (tensor.shape, tensor.dtype):
            ours, here = _type(tensor.dtype, tensor.shape), _type(dtype, shape)
            raise RhinoError(f"the plan has {tensor.name} as {ours}, and this call as {here}", _REMEDY)
    if len(trace.leaves) != len(plan.arguments):
        raise RhinoError(f"the plan has {len(plan.arguments)} arguments, and this call {len(trace.leaves)}", _REMEDY)


def _type(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"


def given_pins(plan: Plan) -> dict[int, Tensor]:
    """Every argument of the plan."""
    return dict(enumerate(plan.arguments))
