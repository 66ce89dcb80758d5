"""Plans by hand as experts: layouts written into a module, propagated by Shardy, and priced like every other plan.

Owns that way from specs to a plan. What specs say is in `specs`. Does not import jax.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from jaxlib.mlir import ir

from rhino.dialect import functions, sdy
from rhino.dialect.context import to_bytecode
from rhino.dialect.locations import argument_name
from rhino.errors import RhinoError
from rhino.experts.specs import Layouts, SpecArgument, Specs, layouts
from rhino.ir.annotations.pinned import pin_arguments
from rhino.ir.diagnostics import Diagnostic
from rhino.ir.meshes import MESH
from rhino.ir.spread import put_within
from rhino.machine import Cluster
from rhino.passes.pass_manager import PassManager
from rhino.passes.registry import build
from rhino.plan import PlanData
from rhino.plan.module import fingerprint, plan_module
from rhino.plan.retype import ALIAS
from rhino.request import PlanRequest
from rhino.sharding.meshes import axes_text


@dataclass(frozen=True, slots=True)
class OutsidePlan:
    """A plan by hand.

    Attributes:
      notes: what its author should know of it, one line each.
      pinned: the module with nothing but what was pinned, which XLA compiles as it does under `jax.jit`; as bytecode.
    """

    plan: PlanData
    notes: tuple[str, ...] = ()
    pinned: bytes = b""


def arguments_of(module: ir.Module) -> list[SpecArgument]:
    """The arguments of @main, by the names that they have there or in locations."""
    main = functions.find(module, "main")
    if main is None:
        raise RhinoError("the module has no function @main", "name the step's function @main")
    found = []
    given = functions.argument_attributes(main)
    for i, (argument, attributes) in enumerate(zip(main.regions[0].blocks[0].arguments, given, strict=True)):
        named = attributes.get("rhino.name")
        name = named.value if named is not None else argument_name(argument, i)
        found.append(SpecArgument(name, sdy.shape_of(argument.type)))
    return found


def plan_by_hand(
    specs: Specs, module: ir.Module, cluster: Cluster, program: str = "", of_tree: Sequence[Any] | None = None
) -> OutsidePlan:
    """What `jax.jit` makes of specs: arguments pinned, the step's own constraints kept, all else propagated by Shardy.

    Results that take the buffers of arguments come back as these lie, as steps over a state are written
    (`out_shardings`). No search and no memory limit: a plan that does not fit is priced, too.

    Args:
      module: of the step, in place annotated.
      program: its `fingerprint`; by default that of the module given.
      of_tree: the spec of each argument from a pytree, None for those it has none of.

    Raises:
      RhinoError: the mesh is not the cluster's, specs do not fit their arguments, or a pass failed.
    """
    if specs.tree is not None and of_tree is None:
        raise RhinoError("a module has no pytrees, of which the specs are", "give rules, or the function instead")
    found = layouts(specs, arguments_of(module), of_tree)
    devices = prod(size for _, size in found.mesh)
    if devices != cluster.num_devices:
        raise RhinoError(
            f"the specs' mesh {axes_text(found.mesh)} has {devices} devices, and cluster {cluster.name} has "
            f"{cluster.num_devices}",
            "give a mesh over all devices, or a cluster of its size",
        )
    said: list[Diagnostic] = []
    program = program or fingerprint(module)
    # A scan's body is a function of its own before, with constraints that would not be seen.
    PassManager(module.context).add(build("rhino-inline", [])).run(module)
    _write(module, found, said)
    pinned = to_bytecode(module)
    request = replace(PlanRequest.of(cluster, level="O0", stages=1), annotations="planned")
    planned = plan_module(module, request, program=program)
    told = dict.fromkeys(one.message for one in (*said, *planned.diagnostics) if one.severity in ("warning", "remark"))
    return OutsidePlan(planned.plan, (*found.notes, *told), pinned)


def plan_as_it_is(module: ir.Module, cluster: Cluster) -> OutsidePlan:
    """The plan of the shardings that a module has on its arguments already, over a mesh of its own.

    Raises:
      RhinoError: it has none, or as `plan_by_hand`.
    """
    meshes = [axes for axes in sdy.mesh_axes(module).values() if axes]
    main = functions.find(module, "main")
    given = functions.argument_attributes(main) if main is not None else []
    if not meshes or not any(sdy.SHARDING in attributes for attributes in given):
        raise RhinoError("no argument of the module has a sharding", "lower it with in_shardings, or give --specs")
    names = [argument.name for argument in arguments_of(module)]
    tensors = {
        name: [axes or None for axes in sdy.dims_of(attributes[sdy.SHARDING])]
        for name, attributes in zip(names, given, strict=True)
        if sdy.SHARDING in attributes
    }
    largest = max(meshes, key=lambda axes: prod(size for _, size in axes))
    return plan_by_hand(Specs(dict(largest), tensors=tensors), module, cluster)


def _write(module: ir.Module, found: Layouts, said: list[Diagnostic]) -> None:
    """The layouts of all arguments, and of the results in their buffers, over the specs' mesh as that of the plan."""
    pin_arguments(module, found.mesh, dict(enumerate(found.dims)), "keep", said.append)
    put_within(module, MESH, found.mesh)
    main = functions.find(module, "main")
    assert main is not None
    arguments, results = functions.argument_attributes(main), functions.result_attributes(main)
    for attributes in arguments:
        if ALIAS in attributes:
            results[attributes[ALIAS].value][sdy.SHARDING] = attributes[sdy.SHARDING]
    functions.set_result_attributes(main, results)
