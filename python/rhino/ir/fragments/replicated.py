"""Replicas of a pipeline's stages in IR: what differs between them gets a leading dimension, split over their axis.

Owns that rewrite of fragments, transfers and the loop over micro-batches. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import mpmd, sdy, stablehlo

from rhino.dialect.constants import splat
from rhino.dialect.functions import owner_of
from rhino.dialect.mpmd import MeshTensor, make_topology, tensor_of, topology
from rhino.dialect.reductions import together
from rhino.dialect.sdy import dims_of, tensor_sharding
from rhino.ir.diagnostics import PassError
from rhino.ir.fragments.accumulators import kind_of, stage_of, starts_as_zeros
from rhino.ir.fragments.distributed import in_parts, scattered, shared_dim
from rhino.ir.meshes import MESH, REPLICA_AXIS
from rhino.program.partial import combined


def widened_topology(function: ir.Operation, count: int) -> ir.Attribute:
    """A function's topology with the replicas' axis in front of each mesh."""
    meshes = topology(function) or []
    return make_topology({name: [(REPLICA_AXIS, count), *axes] for name, axes in meshes}, function.context)


class Replicator:
    """One rewrite of one module."""

    def __init__(self, module: ir.Module, count: int) -> None:
        self.module, self.count = module, count
        self.context = module.context
        self.rewritten = 0

    # --- the micro-batch function -------------------------------------------------------------------------------

    def body(self, function: Any, carried: Sequence[int], indices: Sequence[int]) -> None:
        """The function of one micro-batch becomes that of one round, with a micro-batch per replica."""
        block = function.regions[0].blocks[0]
        arguments = list(block.arguments)
        varying = {arguments[i] for i in carried}
        numbers = {arguments[i] for i in indices}
        for i in carried:
            arguments[i].set_type(self.spread(arguments[i].type))
        for view in list(block.operations):
            op = view.operation
            if op.name == "mpmd.fragment":
                self.fragment(op, varying, numbers)
            elif op.name == "mpmd.transfer":
                if op.operands[0] in varying:
                    self.vary(op.results[0], varying)
            elif op.name != "func.return":
                raise PassError(op, f"'{op.name}' stands between fragments", ["run rhino-form-fragments again"])
        returned = block.operations[len(block.operations) - 1].operands
        for i, v in enumerate(returned):
            if v not in varying:
                raise PassError(function, f"result {i} of the micro-batch function does not depend on the micro-batch")
        self._retype(function, [a.type for a in arguments], [v.type for v in returned])

    def fragment(self, op: Any, varying: set[Any], numbers: set[Any]) -> None:
        """A fragment's body over the values of one replica; all its results differ between replicas."""
        inputs = list(op.operands)
        for result in op.results:
            self.vary(result, varying)
        block = op.regions[0].blocks[0]
        arguments, inner = list(block.arguments), [o.operation for o in block.operations]
        *work, last = inner
        spread = [key in varying for key in inputs]
        for argument, is_spread in zip(arguments, spread, strict=True):
            if is_spread:
                argument.set_type(self.leading(argument.type))
        with self.context, op.location:
            counted = any(key in numbers for key in inputs)
            mine = []
            if counted:
                with ir.InsertionPoint.at_block_begin(block):
                    mine = [stablehlo.IotaOp(ir.RankedTensorType.get([self.count], _int32()), 0).result]
            manual = self.manual(
                [*mine, *arguments],
                [*[(True, None)] * len(mine), *[(s, _dims(v.type)) for s, v in zip(spread, op.operands, strict=True)]],
                [self.leading(v.type) for v in last.operands],
                [_dims(r.type) for r in op.results],
                ir.InsertionPoint(last),
            )
            local = manual.regions[0].blocks[0]
            with ir.InsertionPoint(local):
                number = _reshape(local.arguments[0], []) if counted else None
                stand_in = []
                for i, key in enumerate(inputs):
                    given = local.arguments[i + len(mine)]
                    if spread[i]:
                        given = _reshape(given, given.type.shape[1:])
                    elif key in numbers:
                        given = self.number(given, number)
                    stand_in.append(given)
                end = sdy.ReturnOp([])
            for o in work:
                o.move_before(end.operation)
            for argument, given in zip(arguments, stand_in, strict=True):
                argument.replace_all_uses_except(given, manual.operation)
            with ir.InsertionPoint(end):
                wide = [_reshape(v, [1, *v.type.shape]) for v in last.operands]
                sdy.ReturnOp(wide)
            end.operation.erase()
            for i, result in enumerate(manual.results):
                last.operands[i] = result
        self.rewritten += 1

    def manual(
        self,
        operands: Sequence[ir.Value],
        given: Sequence[tuple[bool, Any]],
        results: Sequence[ir.Type],
        made: Sequence[Any],
        where: ir.InsertionPoint,
    ) -> Any:
        """An empty `sdy.manual_computation` over the axis. `given` are (whether it is spread, dims) per operand."""
        shardings = [self.sharding(v.type, dims, spread) for v, (spread, dims) in zip(operands, given, strict=True)]
        left = [self.sharding(t, dims, True) for t, dims in zip(results, made, strict=True)]
        with where:
            op = sdy.ManualComputationOp(
                list(results),
                list(operands),
                sdy.TensorShardingPerValueAttr.get(shardings),
                sdy.TensorShardingPerValueAttr.get(left),
                sdy.ManualAxesAttr.get([ir.StringAttr.get(REPLICA_AXIS)]),
            )
        local = [
            self.leading(v.type, 1, replace=True) if spread else v.type
            for v, (spread, _) in zip(operands, given, strict=True)
        ]
        op.regions[0].blocks.append(*local)
        return op

    def number(self, index: Any, replica: Any) -> Any:
        """The micro-batch a replica takes in round `index`."""
        if index.type.element_type != replica.type.element_type:
            replica = stablehlo.ConvertOp(index.type, replica).result
        with self.context:
            rounds = stablehlo.MulOp(index, splat(index.type, self.count)).result
        return stablehlo.AddOp(rounds, replica).result

    # --- the loop -----------------------------------------------------------------------------------------------

    def loop(self, main: Any, loop: Any, body: Any) -> None:
        """Accumulators are spread before the loop and brought together behind it."""
        rounds = ir.IntegerAttr(loop.attributes["iterations"])
        loop.attributes["iterations"] = ir.IntegerAttr.get(rounds.type, rounds.value // self.count)
        kinds = [kind_of(body, i) for i in range(len(loop.results))]
        before = list(loop.operands)
        for i, (value, kind) in enumerate(zip(before, kinds, strict=True)):
            if kind == "write" and not starts_as_zeros(value):
                message = f"value {i} of the loop is written row by row, but does not start as zeros"
                raise PassError(loop, message, ["replicas write rows of their own, which are added up"])
        whole = [v.type for v in before]
        wide = [self.spread(t) for t in whole]
        outer = [i for i, v in enumerate(before) if not self.spread_where_made(v, wide[i], kinds[i])]
        given = [before[i] for i in outer]
        self.by_stage(ir.InsertionPoint(loop), "prepare", outer, kinds, body, given, wide, self.spread_out)
        for i, v in zip(outer, given, strict=True):
            loop.operands[i] = v
        block = loop.regions[0].blocks[0]
        for argument, result, kind in zip(list(block.arguments)[:-1], loop.results, wide, strict=True):
            argument.set_type(kind)
            result.set_type(kind)
        for view in block.operations:
            if view.operation.name == "mpmd.call":
                for result, kind in zip(view.operation.results, wide, strict=True):
                    result.set_type(kind)
        shared = [self.shared(v, t, kind) for v, t, kind in zip(loop.results, whole, kinds, strict=True)]
        outer = [i for i, v in enumerate(loop.results) if not self.summed_where_read(v, kinds[i], shared[i])]
        after = [loop.results[i] for i in outer]
        place = ir.InsertionPoint.after(loop)
        summed = [t if dim < 0 else in_parts(t, dim) for t, dim in zip(whole, shared, strict=True)]
        made = self.by_stage(place, "update", outer, kinds, body, after, summed, self.bring_together, shared)
        for i, value in zip(outer, after, strict=True):
            loop.results[i].replace_all_uses_except(value, made)

    def spread_where_made(self, value: Any, wide: Any, kind: str) -> bool:
        """Lets the fragment that makes what an accumulator starts with make it wide; False if others read it, too."""
        maker = owner_of(value)
        if maker is None or maker.name != "mpmd.fragment" or len(list(value.uses)) > 1:
            return False
        block = maker.regions[0].blocks[0]
        last = block.operations[len(block.operations) - 1].operation
        number = ir.OpResult(value).result_number
        with maker.location, ir.InsertionPoint(last):
            last.operands[number] = self.spread_out(last.operands[number], kind)
        value.set_type(wide)
        return True

    def shared(self, value: Any, whole: ir.Type, kind: str) -> int:
        """The dimension of a sum of which each replica needs a part; -1 where they need all, or it is no sum."""
        return shared_dim(value, list(tensor_of(whole).tensor.shape)) if kind in ("add", "write") else -1

    def summed_where_read(self, value: Any, kind: str, dim: int) -> bool:
        """Lets the fragment that reads an accumulator bring it together; False unless just one does."""
        uses = list(value.uses)
        if len(uses) != 1 or uses[0].owner.name != "mpmd.fragment":
            return False
        fragment = uses[0].owner.operation
        block = fragment.regions[0].blocks[0]
        argument = block.arguments[uses[0].operand_number]
        argument.set_type(self.leading(argument.type))
        readers = [use.owner for use in argument.uses]
        with fragment.location, ir.InsertionPoint.at_block_begin(block):
            whole = self.bring_together(argument, kind, _dims(value.type), dim)
        made = [use.owner.operation for use in argument.uses if use.owner not in readers]
        argument.replace_all_uses_except(whole, made)
        return True

    def by_stage(
        self,
        where: ir.InsertionPoint,
        origin: str,
        carries: Sequence[int],
        kinds: Sequence[str],
        body: Any,
        values: list[Any],
        types: Sequence[ir.Type],
        work: Callable[[Any, str, Any, int], Any],
        shared: Sequence[int] = (),
    ) -> list[Any]:
        """One fragment per stage that does `work` on accumulators of its own; `values` becomes the results."""
        stages = [stage_of(body, i) for i in carries]
        made = []
        for stage in dict.fromkeys(stages):
            chosen = [n for n, s in enumerate(stages) if s == stage]
            held = [tensor_of(values[n].type) for n in chosen]
            with self.context, values[chosen[0]].location:
                with where:
                    fragment = mpmd.FragmentOp(
                        [types[carries[n]] for n in chosen],
                        [values[n] for n in chosen],
                        ir.ArrayAttr.get([mpmd.UserOriginAttr.get(origin, 0)]),
                        held[0].mesh,
                        stage_id=ir.IntegerAttr.get(ir.IntegerType.get_signless(64), stage),
                    )
                block = fragment.regions[0].blocks.append(*[t.tensor for t in held])
                with ir.InsertionPoint(block):
                    dims = [shared[carries[n]] if shared else -1 for n in chosen]
                    given = zip(block.arguments, chosen, dims, strict=True)
                    mpmd.ReturnOp([work(a, kinds[carries[n]], _dims(values[n].type), dim) for a, n, dim in given])
            for n, result in zip(chosen, fragment.results, strict=True):
                values[n] = result
            made.append(fragment.operation)
        return made

    def spread_out(self, value: Any, kind: str, dims: Any = None, dim: int = -1) -> Any:
        """One copy per replica; of what is added up only the first replica has it, the others zeros (or ones)."""
        wide = self.leading(value.type)
        dims = list(range(1, len(wide.shape)))
        copies = stablehlo.BroadcastInDimOp(wide, value, ir.DenseI64ArrayAttr.get(dims)).result
        if kind not in ("add", "write", "multiply", "xor"):
            return copies
        replica = stablehlo.IotaOp(ir.RankedTensorType.get(wide.shape, _int32()), 0).result
        first = stablehlo.CompareOp(replica, splat(replica.type, 0), stablehlo.ComparisonDirectionAttr.get("EQ")).result
        return stablehlo.SelectOp(first, copies, splat(wide, int(kind == "multiply"))).result

    def bring_together(self, value: Any, kind: str, dims: Any, dim: int) -> Any:
        """The accumulators of all replicas as one.

        Args:
          dims: their layout, the replicas in front.
          dim: the dimension of which each replica needs a part, -1 if it needs all.
        """
        element = value.type.element_type
        largest = kind in ("maximum", "minimum") and not isinstance(element, ir.IntegerType)
        if largest or not combined(("add" if kind == "write" else kind,), (str(element),)):
            # No all-reduce does it, of bits say, or it passes over NaN: all get all. XLA: largest-passes-over-nan
            everywhere = sdy.TensorShardingAttr(tensor_sharding(self.context, MESH, ((),) * len(value.type.shape)))
            value = sdy.ShardingConstraintOp(value, everywhere).result
        # Of what is written row by row each row is zeros but in the replica that wrote it.
        reduced = together(value, "add" if kind == "write" else kind)
        return reduced if dim < 0 else scattered(reduced, dims[1:], dim)

    # --- types --------------------------------------------------------------------------------------------------

    def vary(self, value: Any, varying: set[Any]) -> None:
        """Gives a value its leading dimension and remembers it."""
        value.set_type(self.spread(value.type))
        varying.add(value)

    def spread(self, kind: ir.Type) -> ir.Type:
        """A mesh tensor's type with the leading dimension, split over the axis."""
        held = tensor_of(kind)
        dims = _dims(kind) or ((),) * len(held.tensor.shape)
        sharding = tensor_sharding(self.context, MESH, ((REPLICA_AXIS,), *dims))
        return MeshTensor(held.mesh, self.leading(held.tensor), sharding, held.memory_kind).to_type(self.context)

    def leading(self, kind: Any, size: int = 0, replace: bool = False) -> Any:
        """A tensor type with a dimension of `size` (by default the number of replicas) in front, or instead of its."""
        shape = list(kind.shape)[1:] if replace else kind.shape
        return ir.RankedTensorType.get([size or self.count, *shape], kind.element_type)

    def sharding(self, kind: Any, dims: Any, spread: bool) -> Any:
        """The sharding of an operand or result of the manual computation."""
        rank = len(kind.shape)
        if spread:
            dims = ((REPLICA_AXIS,), *(dims if dims and dims[0] != (REPLICA_AXIS,) else (dims or ((),) * rank)[1:]))
        return sdy.TensorShardingAttr(tensor_sharding(self.context, MESH, dims or ((),) * rank))

    def _retype(self, function: Any, inputs: Sequence[ir.Type], results: Sequence[ir.Type] | None) -> None:
        kind = function.attributes["function_type"].value
        with self.context:
            made = ir.FunctionType.get(list(inputs), list(kind.results if results is None else results))
            function.attributes["function_type"] = ir.TypeAttr.get(made)


def _dims(kind: ir.Type) -> Any:
    held = tensor_of(kind)
    return None if held.sharding is None else dims_of(held.sharding)


def _reshape(value: Any, shape: Sequence[int]) -> Any:
    kind = ir.RankedTensorType.get(list(shape), value.type.element_type)
    return stablehlo.ReshapeOp(kind, value).result


def _int32() -> ir.Type:
    return ir.IntegerType.get_signless(32)
