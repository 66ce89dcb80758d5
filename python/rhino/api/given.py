"""A plan that the user brings, usually from a file: whether it fits the function, and what it fixes.

Owns these checks. Knows nothing of how files are read.
"""

from __future__ import annotations

import re
from dataclasses import replace

from jaxlib.mlir import ir

from rhino.api.trace import Trace
from rhino.dialect import functions
from rhino.errors import RhinoError
from rhino.machine import Cluster
from rhino.machine.units import nbytes
from rhino.plan import Machine, PlanData, Tensor
from rhino.program.element_types import type_text

_ARGUMENT = re.compile(r"\w+(?:\[\d+\])?")  # of *args: args[0]
_REMEDY = "plan again for these arguments, without plan="


def check_fits(plan: PlanData, trace: Trace, module: ir.Module, cluster: Cluster, memory_bytes: int = 0) -> PlanData:
    """The plan, its arguments called as the function's.

    Arguments are the same if they stand in the same place, with the same keys below them, shapes and types: their
    names are the function's own affair.

    Args:
      memory_bytes: what a device may use of its memory, 0 for all of it.

    Raises:
      RhinoError: the plan is for another cluster, or the first argument in which plan and function differ.
    """
    _check_cluster(plan, cluster, memory_bytes)
    main = functions.find(module, "main")
    assert main is not None
    types = main.attributes["function_type"].value.inputs
    called: dict[str, str] = {}
    for leaf, kind, tensor in zip(trace.leaves, types, plan.arguments, strict=False):
        shape, dtype = tuple(kind.shape), str(kind.element_type)
        keys = leaf.name.removeprefix(leaf.argument)
        name = tensor.name.removesuffix(keys) if keys else tensor.name
        if not _ARGUMENT.fullmatch(name) or called.setdefault(leaf.argument, name) != name:
            raise RhinoError(
                f"the plan is of another function: it has {tensor.name} where this has {leaf.name}", _REMEDY
            )
        if (shape, dtype) != (tensor.shape, tensor.dtype):
            ours, here = type_text(tensor.dtype, tensor.shape), type_text(dtype, shape)
            raise RhinoError(f"the plan has {tensor.name} as {ours}, and this call as {here}", _REMEDY)
    if len(trace.leaves) != len(plan.arguments):
        raise RhinoError(f"the plan has {len(plan.arguments)} arguments, and this call {len(trace.leaves)}", _REMEDY)
    if all(name == argument for argument, name in called.items()):
        return plan
    pairs = zip(plan.arguments, trace.leaves, strict=True)
    return replace(plan, arguments=tuple(replace(tensor, name=leaf.name) for tensor, leaf in pairs))


def _check_cluster(plan: PlanData, cluster: Cluster, memory_bytes: int) -> None:
    if plan.devices != cluster.num_devices:
        raise RhinoError(
            f"the plan is for {plan.devices} devices, and cluster {cluster.name} has {cluster.num_devices}", _REMEDY
        )
    here = Machine(cluster.device.kind, cluster.hosts, cluster.devices_per_host)
    if plan.machine is not None and plan.machine != here:
        raise RhinoError(
            f"the plan is for cluster {plan.cluster}, {plan.machine}, and cluster {cluster.name} is {here}",
            f"plan again for {cluster.name}, without plan=, or give the plan's cluster as cluster=",
        )
    most = memory_bytes or cluster.device.memory_bytes
    if plan.predicted.peak_bytes > most:
        need, have = nbytes(plan.predicted.peak_bytes), nbytes(most)
        raise RhinoError(f"the plan needs {need} of a device, which has {have} here", _REMEDY)


def given_pins(plan: PlanData) -> dict[int, Tensor]:
    """Every argument of the plan."""
    return dict(enumerate(plan.arguments))
