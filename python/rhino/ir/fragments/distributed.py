"""A distributed optimizer in fragments: state that replicas of a stage share out, and what updates make of it.

Owns the layouts of `rhino.distributed` in the fragments of updates. Decides nothing.
"""

from __future__ import annotations

from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from rhino.dialect import functions
from rhino.dialect.attributes import RhinoDistributed, RhinoRole
from rhino.dialect.mpmd import mesh_tensor
from rhino.dialect.sdy import SHARDING, dims_of, per_value, results_of, tensor_sharding
from rhino.ir.meshes import MESH, REPLICA_AXIS
from rhino.program.data import Dims

_ALIAS = "tf.aliasing_output"


def shared_dim(value: Any, shape: list[int]) -> int:
    """The dimension of a value of @main that replicas share out for the updates that read it; -1 if all need all.

    Args:
      shape: that of what they combine it with.
    """
    for use in value.uses:
        fragment = use.owner.operation
        if fragment.name == "mpmd.fragment":
            dim = _dim_inside(fragment.regions[0].blocks[0].arguments[use.operand_number], shape)
            if dim >= 0:
                return dim
    return -1


def scattered(value: Any, dims: Dims, dim: int) -> Any:
    """A sum of all replicas in parts. Said in two steps, of which XLA makes one reduce-scatter."""
    for layout in dims, with_replicas(dims, dim):
        sharding = sdy.TensorShardingAttr(tensor_sharding(value.context, MESH, layout))
        value = sdy.ShardingConstraintOp(value, sharding).result
    return value


def with_replicas(dims: Dims, dim: int) -> Dims:
    """A layout with a dimension split over the replicas, too, within what splits it."""
    return tuple((*axes, REPLICA_AXIS) if d == dim else axes for d, axes in enumerate(dims))


def distribute(main: Any) -> int:
    """Lays out what the fragments of updates say that replicas share out. Returns how many arguments that are."""
    block = main.regions[0].blocks[0]
    given = functions.argument_attributes(main)
    ending = block.operations[len(block.operations) - 1]
    returned = {v: k for k, v in enumerate(ending.operands)}
    aliases = {ir.IntegerAttr(a[_ALIAS]).value: k for k, a in enumerate(given) if _ALIAS in a}
    held = 0
    # Before the marks are taken off.
    for k, (argument, attributes) in enumerate(zip(block.arguments, given, strict=True)):
        kind = mesh_tensor(argument.type)
        state = RhinoRole.name in attributes and ir.StringAttr(attributes[RhinoRole.name]).value == "opt_state"
        if kind is None or not state or k not in aliases.values():
            continue
        dim = shared_dim(argument, list(kind.tensor.shape))
        if dim >= 0:
            _share(argument, dim)
            held += 1
    for fragment in [view.operation for view in block.operations if view.operation.name == "mpmd.fragment"]:
        results = _marked(fragment)
        end = fragment.regions[0].blocks[0].operations
        for made, result in zip(end[len(end) - 1].operands, fragment.results, strict=True):
            if made not in results:
                continue
            keeper = aliases.get(returned[result], -1) if result in returned else -1
            if result not in returned or (keeper >= 0 and _is_shared(block.arguments[keeper])):
                _share(result, results[made])
    kind = main.attributes["function_type"].value
    with main.context:
        types = ir.FunctionType.get([a.type for a in block.arguments], [v.type for v in ending.operands])
        main.attributes["function_type"] = ir.TypeAttr.get(types)
    return held


def _marked(fragment: Any) -> dict[Any, int]:
    """What a fragment makes in parts, with the dimension; the operations get their layouts, and lose their marks."""
    found = {}
    for view in fragment.regions[0].blocks[0].operations:
        op = view.operation
        if RhinoDistributed.name in op.attributes:
            (result,) = op.results
            dim = int(RhinoDistributed.from_attr(op.attributes[RhinoDistributed.name]))
            found[result] = dim
            del op.attributes[RhinoDistributed.name]
            (sharding,) = results_of(op)
            dims = ((),) * result.type.rank if sharding is None else dims_of(sharding)
            layout = tensor_sharding(op.context, MESH, with_replicas(dims, dim))
            op.attributes[SHARDING] = per_value([layout], op.context)
    return found


def _dim_inside(argument: Any, shape: list[int]) -> int:
    """As `shared_dim`, of an argument of a fragment."""
    for use in argument.uses:
        reader = use.owner.operation
        if RhinoDistributed.name in reader.attributes and list(reader.results[0].type.shape) == shape:
            return int(RhinoDistributed.from_attr(reader.attributes[RhinoDistributed.name]))
    return -1


def _share(value: Any, dim: int) -> None:
    """Has replicas of the stage keep parts of a value of @main."""
    kind = mesh_tensor(value.type)
    assert kind is not None
    dims = ((),) * kind.tensor.rank if kind.sharding is None else dims_of(kind.sharding)
    sharding = tensor_sharding(value.context, MESH, with_replicas(dims, dim))
    value.set_type(type(kind)(kind.mesh, kind.tensor, sharding, kind.memory_kind).to_type(value.context))


def _is_shared(value: Any) -> bool:
    kind = mesh_tensor(value.type)
    dims = () if kind is None or kind.sharding is None else dims_of(kind.sharding)
    return any(REPLICA_AXIS in axes for axes in dims)
