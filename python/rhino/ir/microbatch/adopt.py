"""The step's own loop over micro-batches, made again as the one of a pipeline.

Owns that rewriting. What the loop carries is read by `rhino.ir.microbatch.accumulation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect import functions
from rhino.dialect.attributes import RhinoMicrobatches
from rhino.dialect.constants import identity, is_zeros, splat
from rhino.dialect.reductions import APPLY
from rhino.ir.import_graph import import_graph, number_program
from rhino.ir.microbatch.accumulation import Accumulation, NoAccumulation, read_accumulation
from rhino.ir.microbatch.sink import sink_behind
from rhino.ir.scans.loops import LOOP
from rhino.program.data import Graph

# What keeps a zero zero.
_SPREAD = ("stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.convert")
# Made anew where they are read rather than kept.
_CHEAP = ("stablehlo.constant", "stablehlo.iota", "stablehlo.broadcast_in_dim", "stablehlo.custom_call")


def own_loop(module: ir.Module, graph: Graph) -> Accumulation | NoAccumulation | None:
    """The loop of a program that `adopt` would rewrite, or why it would not, or None where there is none."""
    if graph.microbatch_loop >= 0 or not any(op.name == LOOP for op in graph.ops):
        return None
    return read_accumulation(graph, number_program(functions.find(module, "main"))[1])


def adopt(module: ir.Module) -> int | NoAccumulation | None:
    """Rewrites the loop; returns its number of micro-batches, or why it is not taken, or None where there is none."""
    main = functions.find(module, "main")
    found = own_loop(module, import_graph(module))
    if isinstance(found, Accumulation):
        _, ops = number_program(main)
        reads = {ops[k]: run for k, run in found.runs.items()}
        with module.context, ops[found.op].location:
            sink_behind(_Rewriter(main, ops[found.op], found, reads).run())
        return found.trips
    return found


class _Rewriter:
    """One loop, made again in front of the old one."""

    def __init__(self, main: Any, loop: Any, found: Accumulation, runs: dict[Any, tuple[int, int]]) -> None:
        self.main, self.loop, self.found, self.runs = main, loop, found, runs
        self.body = loop.regions[1].blocks[0]
        self.kinds = [v.type for v in loop.operands]
        self.scalar = ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))

    def run(self) -> Any:
        """Replaces the loop; returns the new one."""
        loop, found = self.loop, self.found
        with ir.InsertionPoint(loop):
            self.zero = splat(self.scalar, 0)
            self.outside = {self.body.arguments[p]: loop.operands[p] for p in found.fixed}
            rows = self.run_ahead()
            carried = [*sorted(found.sums), *sorted(found.decays), *sorted(found.stacks)]
            starts = [self.start(p) for p in carried]
            new, block, counter = self.counted([self.zero, *starts])
            self.new = new
            RhinoMicrobatches.attach(new, {"count": found.trips})
            with ir.InsertionPoint(block):
                values = self.at(counter) | dict(
                    zip(map(self.argument, carried), list(block.arguments)[1:], strict=True)
                )
                for position, buffer in rows.items():
                    values[self.argument(position)] = self.row(buffer, counter)
                following = self.inside(values, carried, counter)
                step = stablehlo.AddOp(counter, splat(self.scalar, 1)).result
                stablehlo.ReturnOp([step, *following])
            self.hoist(block)
            for position, result in zip(carried, list(new.results)[1:], strict=True):
                if position in found.sums and not self.is_neutral(position):
                    result = APPLY[found.sums[position]](loop.operands[position], result).result
                elif position in found.decays:
                    left = splat(result.type, found.decays[position] ** found.trips)
                    left = stablehlo.MulOp(loop.operands[position], left).result
                    result = stablehlo.AddOp(left, result).result
                loop.results[position].replace_all_uses_with(result)
            for position in found.fixed:
                loop.results[position].replace_all_uses_with(loop.operands[position])
            for position, (start, step) in self.all_counters().items():
                last = splat(self.kinds[position], start + step * found.trips)
                loop.results[position].replace_all_uses_with(last)
        loop.erase()
        return new

    def argument(self, position: int) -> Any:
        return self.body.arguments[position]

    def all_counters(self) -> dict[int, tuple[int, int]]:
        return {self.found.counter: (0, 1), **self.found.counters}

    def at(self, counter: Any) -> dict[Any, Any]:
        """What the old body's arguments that are known before the loop stand for in trip `counter`."""
        values = dict(self.outside)
        for position, (start, step) in self.all_counters().items():
            kind = self.kinds[position]
            value = counter if kind == self.scalar else stablehlo.ConvertOp(kind, counter).result
            if step != 1:
                value = stablehlo.MulOp(value, splat(kind, step)).result
            if start:
                value = stablehlo.AddOp(value, splat(kind, start)).result
            values[self.argument(position)] = value
        return values

    def counted(self, starts: Sequence[Any]) -> tuple[Any, Any, Any]:
        """A loop of as many trips that carries a counter and more, before the old one: it, its body, the counter."""
        kinds = [v.type for v in starts]
        new = ir.Operation.create(LOOP, results=kinds, operands=list(starts), regions=2)
        places = [self.loop.location] * len(kinds)
        cond = new.regions[0].blocks.append(*kinds, arg_locs=places)
        with ir.InsertionPoint(cond):
            less = stablehlo.ComparisonDirectionAttr.get("LT")
            limit = splat(self.scalar, self.found.trips)
            stablehlo.ReturnOp([stablehlo.CompareOp(cond.arguments[0], limit, less).result])
        block = new.regions[1].blocks.append(*kinds, arg_locs=places)
        return new, block, block.arguments[0]

    # What is known before the examples.

    def run_ahead(self) -> dict[int, Any]:
        """Computes what depends on no sum in a loop of its own; what every trip starts with, by position."""
        loop, ahead = self.loop, self.found.ahead
        if not ahead:
            return {}
        kinds = [self.kinds[p] for p in ahead]
        buffers = [
            splat(ir.RankedTensorType.get([self.found.trips, *kind.shape], kind.element_type), 0) for kind in kinds
        ]
        new, block, counter = self.counted([self.zero, *(loop.operands[p] for p in ahead), *buffers])
        held = list(block.arguments)[1:]
        with ir.InsertionPoint(block):
            values = self.at(counter) | dict(zip(map(self.argument, ahead), held, strict=False))
            kept = [self.put(*pair, counter) for pair in zip(held[len(ahead) :], held, strict=False)]
            wanted = [self.yielded(p) for p in ahead]
            functions.copy_all(self.needed(wanted), values)
            step = stablehlo.AddOp(counter, splat(self.scalar, 1)).result
            stablehlo.ReturnOp([step, *(values.get(v, v) for v in wanted), *kept])
        made = list(new.results)[1:]
        for position, result in zip(ahead, made, strict=False):
            loop.results[position].replace_all_uses_with(result)
        return dict(zip(ahead, made[len(ahead) :], strict=True))

    def needed(self, wanted: Sequence[Any]) -> list[Any]:
        """The operations of the old body that make some values, in order."""
        want = set(wanted)
        found = []
        for view in reversed(list(self.body.operations)[:-1]):
            op = view.operation
            if any(result in want for result in op.results):
                found.append(op)
                want.update(v for inner in (op, *functions.walk(op)) for v in inner.operands)
        return found[::-1]

    def put(self, buffer: Any, value: Any, counter: Any) -> Any:
        row = stablehlo.ReshapeOp(ir.RankedTensorType.get([1, *value.type.shape], value.type.element_type), value)
        starts = [counter, *[self.zero] * len(value.type.shape)]
        return stablehlo.DynamicUpdateSliceOp(buffer, row, starts).result

    def row(self, buffer: Any, counter: Any) -> Any:
        shape = buffer.type.shape[1:]
        starts = [counter, *[self.zero] * len(shape)]
        part = stablehlo.DynamicSliceOp(buffer, starts, ir.DenseI64ArrayAttr.get([1, *shape])).result
        return stablehlo.ReshapeOp(ir.RankedTensorType.get(shape, buffer.type.element_type), part).result

    # The body.

    def inside(self, values: dict[Any, Any], carried: Sequence[int], counter: Any) -> list[Any]:
        """Copies the body, and gives what the loop goes on with."""
        for view in list(self.body.operations)[:-1]:
            op = view.operation
            if op in self.runs:
                values[op.results[0]] = self.read_run(op, values)
                continue
            functions.copy_all([op], values)
        made = []
        for p in carried:
            if p in self.found.sums:
                made.append(self.total(p, values))
            elif p in self.found.decays:
                made.append(self.weighted(p, values, counter))
            else:
                made.append(values[self.yielded(p)])
        return made

    def read_run(self, op: Any, values: dict[Any, Any]) -> Any:
        """Run t of examples as row t of them: so they can be sharded, and the runs stay."""
        dim, size = self.runs[op]
        given = op.operands[0]
        source, index = values.get(given, given), values[self.argument(self.found.counter)]
        shape = list(source.type.shape)
        apart = [*shape[:dim], self.found.trips, size, *shape[dim + 1 :]]
        with op.location:
            with ir.InsertionPoint(self.new):
                whole = stablehlo.ReshapeOp(ir.RankedTensorType.get(apart, source.type.element_type), source).result
            starts = [self.zero] * len(apart)
            starts[dim] = index if index.type == self.scalar else stablehlo.ConvertOp(self.scalar, index).result
            sizes = [*apart[:dim], 1, *apart[dim + 1 :]]
            part = stablehlo.DynamicSliceOp(whole, starts, ir.DenseI64ArrayAttr.get(sizes)).result
            return stablehlo.ReshapeOp(op.results[0].type, part).result

    def hoist(self, block: Any) -> None:
        """Moves what is the same in every trip, such as casts of parameters, in front of the loop."""
        inside = {*block.arguments}
        for op in [view.operation for view in block.operations][:-1]:
            same = len(op.operands) and not len(op.regions) and inside.isdisjoint(op.operands)
            if same and op.name not in _CHEAP:
                op.move_before(self.new)
            else:
                inside.update(op.results)

    def total(self, position: int, values: dict[Any, Any]) -> Any:
        """The accumulator and all that the body adds to it, added up in the end."""
        at, end = values[self.argument(position)], values[self.yielded(position)]
        combine = APPLY[self.found.sums[position]]
        chain: list[Any] = []
        part = None
        while at != end:
            chain.append(next(iter(at.uses)).owner.operation)
            added = chain[-1].operands[int(chain[-1].operands[0] == at)]
            part = added if part is None else combine(part, added).result
            at = chain[-1].results[0]
        total = combine(values[self.argument(position)], part).result
        for op in reversed(chain):
            op.erase()
        return total

    def weighted(self, position: int, values: dict[Any, Any], counter: Any) -> Any:
        """A running mean as a sum: what trip t adds to it is multiplied by the factors of the trips that follow."""
        at, end = values[self.argument(position)], values[self.yielded(position)]
        shrunk = next(iter(at.uses)).owner.operation
        last = end.owner.operation
        added = last.operands[int(last.operands[0] == shrunk.results[0])]
        count, kind = self.found.trips, at.type
        table = ir.RankedTensorType.get([count], kind.element_type)
        powers = [
            ir.FloatAttr.get(kind.element_type, self.found.decays[position] ** (count - 1 - t)) for t in range(count)
        ]
        with self.new.location, ir.InsertionPoint(self.new):
            weights = stablehlo.ConstantOp(ir.DenseElementsAttr.get(powers, table)).result
        part = stablehlo.DynamicSliceOp(weights, [counter], ir.DenseI64ArrayAttr.get([1])).result
        weight = stablehlo.ReshapeOp(ir.RankedTensorType.get([], kind.element_type), part).result
        spread = stablehlo.BroadcastInDimOp(kind, weight, ir.DenseI64ArrayAttr.get([])).result
        total = stablehlo.AddOp(at, stablehlo.MulOp(added, spread).result).result
        last.erase()
        shrunk.erase()
        return total

    def yielded(self, position: int) -> Any:
        return self.body.operations[len(self.body.operations) - 1].operands[position]

    # What sums start from.

    def start(self, position: int) -> Any:
        """Of a sum what changes nothing, of rows, which are all written, anything."""
        kind = self.kinds[position]
        how = self.found.sums.get(position, "add")
        return splat(kind, identity(how, kind.element_type))

    def is_neutral(self, position: int) -> bool:
        """Whether a sum starts from zero in the program, too."""
        value = self.loop.operands[position]
        while isinstance(value, ir.OpResult) and value.owner.name in _SPREAD:
            value = value.owner.operands[0]
        return self.found.sums[position] == "add" and isinstance(value, ir.OpResult) and is_zeros(value.owner.operation)
