"""A distributed optimizer in fragments: state that replicas of a stage share out, and what updates make of it.

Owns the layouts of `rhino.distributed` in the fragments of updates. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from rhino.dialect import functions
from rhino.dialect.attributes import RhinoDistributed, RhinoRole
from rhino.dialect.mpmd import tensor_of
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


def in_parts(kind: ir.Type, dim: int) -> ir.Type:
    """The type of a mesh tensor of which each replica of its stage keeps a part."""
    held = tensor_of(kind)
    dims = ((),) * held.tensor.rank if held.sharding is None else dims_of(held.sharding)
    sharding = tensor_sharding(kind.context, MESH, with_replicas(dims, dim))
    return replace(held, sharding=sharding).to_type(kind.context)


def distribute(main: Any) -> int:
    """Lays out what the fragments of updates say that replicas share out. Returns how many arguments that are."""
    block = main.regions[0].blocks[0]
    fragments = [view.operation for view in block.operations if view.operation.name == "mpmd.fragment"]
    parts = {result: dim for fragment in fragments for result, dim in _made_in_parts(fragment)}
    ending = block.operations[len(block.operations) - 1]
    arguments = list(zip(block.arguments, functions.argument_attributes(main), strict=True))
    # Of what @main returns, state stays in parts that is read in parts; the rest is gathered.
    held = 0
    for argument, given in arguments:
        state = RhinoRole.name in given and ir.StringAttr(given[RhinoRole.name]).value == "opt_state"
        kept = ending.operands[ir.IntegerAttr(given[_ALIAS]).value] if state and _ALIAS in given else None
        if kept in parts and shared_dim(argument, list(tensor_of(argument.type).tensor.shape)) == parts[kept]:
            _share(argument, parts[kept])
            _share(kept, parts.pop(kept))
            held += 1
    returned = set(ending.operands)
    for result, dim in parts.items():
        if result not in returned:
            _share(result, dim)
    for fragment in fragments:
        _lay_out(fragment)
    with main.context:
        types = ir.FunctionType.get([a.type for a in block.arguments], [v.type for v in ending.operands])
        main.attributes["function_type"] = ir.TypeAttr.get(types)
    return held


def _made_in_parts(fragment: Any) -> Iterator[tuple[Any, int]]:
    """The results of a fragment that it makes in parts, with the dimension."""
    operations = fragment.regions[0].blocks[0].operations
    for made, result in zip(operations[len(operations) - 1].operands, fragment.results, strict=True):
        maker = None if isinstance(made, ir.BlockArgument) else made.owner
        if maker is not None and RhinoDistributed.name in maker.attributes:
            yield result, int(RhinoDistributed.from_attr(maker.attributes[RhinoDistributed.name]))


def _lay_out(fragment: Any) -> None:
    """Gives the operations of a fragment that make parts their layouts, and takes the marks off."""
    for view in fragment.regions[0].blocks[0].operations:
        op = view.operation
        if RhinoDistributed.name in op.attributes:
            (result,), (sharding,) = op.results, results_of(op)
            dims = ((),) * result.type.rank if sharding is None else dims_of(sharding)
            dim = int(RhinoDistributed.from_attr(op.attributes[RhinoDistributed.name]))
            op.attributes[SHARDING] = per_value(
                [tensor_sharding(op.context, MESH, with_replicas(dims, dim))], op.context
            )
            del op.attributes[RhinoDistributed.name]


def _dim_inside(argument: Any, shape: list[int]) -> int:
    """As `shared_dim`, of an argument of a fragment."""
    for use in argument.uses:
        reader = use.owner.operation
        if RhinoDistributed.name in reader.attributes and list(reader.results[0].type.shape) == shape:
            return int(RhinoDistributed.from_attr(reader.attributes[RhinoDistributed.name]))
    return -1


def _share(value: Any, dim: int) -> None:
    """Has replicas of the stage keep parts of a value of @main."""
    value.set_type(in_parts(value.type, dim))
