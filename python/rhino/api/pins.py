"""What a plan must keep because arrays already live so: the shapes and shardings of state that several functions share.

Owns finding the state of one step among the arguments of another, and writing it into the module before planning.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir

from rhino.api.trace import ArgumentLeaf, Trace, is_key
from rhino.dialect import functions, sdy
from rhino.dialect.attributes import RhinoHosted, RhinoRole
from rhino.ir.annotations.pinned import pin_arguments
from rhino.ir.diagnostics import Sink
from rhino.ir.meshes import MESH
from rhino.plan import PlanData, Tensor
from rhino.plan.retype import take_stored
from rhino.plan.strided import original_sharding
from rhino.program.data import STATE


def find_pins(trace: Trace, plan: PlanData, source: Trace) -> dict[int, Tensor]:
    """For each flat argument of `trace` that is state of the step `source`, the argument of `plan` that it is there."""
    return {i: plan.arguments[there] for i, there in find_state(trace, plan, source).items()}


def find_state(trace: Trace, plan: PlanData, source: Trace) -> dict[int, int]:
    """As `find_pins`, its number among the arguments there.

    An argument is state of the other step if its leaves, in order and under the same keys, are a run of leaves there:
    the whole state, or a part such as `state.params`. Runs of parameters are preferred to runs of optimizer state.
    """
    found: dict[int, int] = {}
    start = 0
    while start < len(trace.leaves):
        stop = start
        while stop < len(trace.leaves) and trace.leaves[stop].argument == trace.leaves[start].argument:
            stop += 1
        at = _find_run(trace.leaves[start:stop], source.leaves, plan.arguments)
        if at is not None:
            found |= {start + i: at + i for i in range(stop - start)}
        start = stop
    return found


def _find_run(leaves: Sequence[ArgumentLeaf], among: Sequence[ArgumentLeaf], tensors: Sequence[Tensor]) -> int | None:
    """Where `leaves` stand among the leaves of the other step, or None."""
    best: tuple[int, int] | None = None
    for at in range(len(among) - len(leaves) + 1):
        if all(_same(leaf, among[at + i]) for i, leaf in enumerate(leaves)):
            roles = [tensors[at + i].role for i in range(len(leaves))]
            if not any(role in STATE for role in roles):
                continue
            rank = (sum(role != "param" for role in roles), at)
            best = rank if best is None else min(best, rank)
    return None if best is None else best[1]


def _same(leaf: ArgumentLeaf, other: ArgumentLeaf) -> bool:
    if (leaf.aval.shape, leaf.aval.dtype) != (other.aval.shape, other.aval.dtype):
        return False
    if not leaf.path:  # a bare array has only its name to be known by
        return leaf.name == other.name
    return other.path[-len(leaf.path) :] == leaf.path


def write_pins(module: ir.Module, plan: PlanData, pins: dict[int, Tensor], annotations: str, sink: Sink) -> None:
    """Put the plan's mesh, and its shardings on the pinned arguments of @main, into a module not yet planned.

    Strided arguments have no sharding before the module has them in their stored shapes: they only get their role, on
    which that depends. `pin_strided` does the rest.

    Args:
      annotations: "keep" or "ignore" those of the module; those that the plan's mesh has no axes for are dropped.
      sink: told of these.

    Raises:
      RhinoError: the module has manual computations over several meshes.
    """
    layouts = {i: tensor.sharding for i, tensor in pins.items() if not tensor.is_strided}
    pin_arguments(module, plan.mesh, layouts, annotations, sink)
    main = functions.find(module, "main")
    assert main is not None
    attributes = functions.argument_attributes(main)
    for i, tensor in pins.items():
        if tensor.is_strided:
            attributes[i][RhinoRole.name] = RhinoRole.to_attr(tensor.role, module.context)
        if tensor.memory:
            attributes[i][RhinoHosted.name] = RhinoHosted.to_attr(True, module.context)
    functions.set_argument_attributes(main, attributes)


def pin_strided(module: ir.Module, pins: dict[int, Tensor]) -> None:
    """Put shardings on the pinned arguments that are strided, after `rhino-expose-strided-dims`.

    One that this program stores as the other does costs nothing, nor does one that it does not compute with. One that
    it takes whole gets the nearest sharding of the whole, and a call makes the whole first. One that it stores in yet
    another shape is left to the search.
    """
    main = functions.find(module, "main")
    assert main is not None
    strided = {i: tensor for i, tensor in pins.items() if tensor.is_strided}
    take_stored(main, {i: tensor.stored_shape for i, tensor in strided.items()})
    attributes = functions.argument_attributes(main)
    types = main.attributes["function_type"].value.inputs
    for i, tensor in strided.items():
        shape, sharding = tuple(types[i].shape), tensor.sharding
        if shape == tensor.shape:
            sharding = original_sharding(tensor.shape, tensor.stored_shape, sharding)
        if shape in (tensor.shape, tensor.stored_shape):
            attributes[i][sdy.SHARDING] = sdy.tensor_sharding(module.context, MESH, sharding)
    functions.set_argument_attributes(main, attributes)


def make_keys_whole(module: ir.Module, trace: Trace) -> bool:
    """Undo, in a planned module, splits of the bits of PRNG keys: jax cannot say them, for it hides that dimension.

    Returns:
      Whether there were any.
    """
    main = functions.find(module, "main")
    assert main is not None
    arguments, results = functions.argument_attributes(main), functions.result_attributes(main)
    changed = False
    for attributes, aval in (
        *zip(arguments, (leaf.aval for leaf in trace.leaves), strict=True),
        *zip(results, trace.jaxpr.out_avals, strict=True),
    ):
        given = attributes.get(sdy.SHARDING)
        dims = sdy.dims_of(given) if given is not None and is_key(aval) else ()
        rank = len(aval.shape)
        if any(dims[rank:]):
            whole = (*dims[:rank], *(() for _ in dims[rank:]))
            attributes[sdy.SHARDING] = sdy.tensor_sharding(module.context, sdy.mesh_of(given), whole)
            changed = True
    if changed:
        functions.set_argument_attributes(main, arguments)
        functions.set_result_attributes(main, results)
    return changed
