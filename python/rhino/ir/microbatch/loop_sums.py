"""What a loop over layers makes of sums, made after the loop instead: of the stacked sums of all layers at once.

Owns this rewrite for rhino-split-microbatch, which can finish a sum only after its own loop. Running statistics of
BatchNorm in a scan are such: row i is made of the mean of layer i by element-wise operations. Results stay the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect.constants import splat
from rhino.dialect.functions import attributes_of
from rhino.dialect.loops import widen
from rhino.ir.microbatch.accumulate import only_written
from rhino.ir.scans.loops import LOOP, READ, Scan, Stack, Uses, read_scan
from rhino.program.data import Graph, Op
from rhino.program.fusible import is_elementwise

_RESHAPE, _BROADCAST, _CONSTANT = "stablehlo.reshape", "stablehlo.broadcast_in_dim", "stablehlo.constant"


def return_sums(graph: Graph, values: Sequence[Any], ops: Sequence[Any], wanted: Sequence[int]) -> int:
    """Makes the wanted values, which loops of @main give, after these loops; returns how many it could."""
    uses = Uses.of(graph)
    done = 0
    for k in sorted({graph.values[v].producer for v in wanted}):
        op = graph.ops[k]
        scan = read_scan(graph, ops, uses, op) if op.name == LOOP and op.parent < 0 else ""
        if not isinstance(scan, Scan):
            continue
        stacks = [
            stack
            for stack in scan.stacks
            if stack.written and stack.result in wanted and stack.dim == 0 and only_written(graph, uses, stack, k)
        ]
        moved = _Sink(graph, values, ops, op, scan)
        for stack in stacks:
            done += moved.take(stack)
        if moved.rows:
            moved.run()
    return done


@dataclass
class _Sink:
    """The rewrite of one loop. `rows`: what is written into each stack; `leaves`: what the loop returns for it."""

    graph: Graph
    values: Sequence[Any]
    ops: Sequence[Any]
    op: Op
    scan: Scan
    rows: dict[int, int] = field(default_factory=dict)
    leaves: dict[int, Any] = field(default_factory=dict)
    write: int = -1

    def __post_init__(self) -> None:
        self.slices = {
            access: stack.value
            for stack in self.scan.stacks
            if not stack.written and stack.dim == 0
            for access in stack.accesses
            if self.ops[access].name == READ
        }
        self.fixed = {self.op.ties[p][2]: self.op.ties[p][0] for p in self.scan.fixed}
        self.made: dict[int, Any] = {}

    def take(self, stack: Stack) -> bool:
        """Notes a stack to be made after the loop, if its rows are not made in the loop for good."""
        write = self.graph.ops[stack.accesses[0]]
        row = write.operands[1]
        leaves: dict[int, Any] = {}
        seen: set[int] = set()
        pending = [row]
        while pending:
            v = pending.pop()
            if v in seen:
                continue
            seen.add(v)
            inner = self.followed(v)
            if inner is None:
                leaves[v] = None
            pending += inner or ()
        if row in leaves or not leaves:
            return False
        self.rows[stack.position], self.write = row, write.index
        self.leaves.update(leaves)
        return True

    def followed(self, v: int) -> Sequence[int] | None:
        """What a value is made of where it can be made of all layers at once, None where it cannot."""
        value = self.graph.values[v]
        if value.loop != self.op.index or v in self.fixed:
            return ()
        if value.producer < 0:
            return None
        producer = self.graph.ops[value.producer]
        if producer.name == _CONSTANT or producer.index in self.slices:
            return ()
        if producer.name in (_RESHAPE, _BROADCAST) or is_elementwise(self.graph, producer):
            return producer.operands
        return None

    def run(self) -> None:
        """Rewrites the loop."""
        old = self.ops[self.op.index]
        count = len(old.results)
        with old.location:
            new = widen(old, [self.stacked(self.values[v].type) for v in self.leaves], self.written)
        for n, v in enumerate(self.leaves):
            self.made[v] = new.results[count + n]
        # Right behind the loop.
        with new.location, ir.InsertionPoint(old):
            for position, row in self.rows.items():
                kind = new.results[position].type
                found = stablehlo.ReshapeOp(kind, self.layers(row)).result
                new.results[position].replace_all_uses_with(found)
        old.erase()

    def written(self, stacks: Sequence[Any]) -> list[Any]:
        """The stacks with the rows of one layer, at the insertion point."""
        index = self.ops[self.write].operands[2]
        zero = splat(index.type, 0)
        found = []
        for stack, v in zip(stacks, self.leaves, strict=True):
            leaf = self.values[v]
            row = stablehlo.ReshapeOp(ir.RankedTensorType.get([1, *leaf.type.shape], leaf.type.element_type), leaf)
            starts = [index, *[zero] * len(leaf.type.shape)]
            found.append(stablehlo.DynamicUpdateSliceOp(stack, row.result, starts).result)
        return found

    def stacked(self, kind: Any) -> Any:
        """The type of a value of all layers."""
        return ir.RankedTensorType.get([self.scan.trips, *kind.shape], kind.element_type)

    def layers(self, v: int) -> Any:
        """The value of all layers, at the insertion point."""
        order, seen = [], set[int]()
        pending = [(v, False)]
        while pending:
            at, ready = pending.pop()
            if ready:
                order.append(at)
            elif at not in seen:
                seen.add(at)
                pending.append((at, True))
                pending += [(u, False) for u in self.followed(at) or ()]
        for at in order:
            if at not in self.made:
                self.made[at] = self.layer(at)
        return self.made[v]

    def layer(self, v: int) -> Any:
        """One of them, whose operands are there."""
        kind = self.stacked(self.values[v].type)
        if self.graph.values[v].loop != self.op.index or v in self.fixed:
            return _spread(self.values[self.fixed.get(v, v)], kind, list(range(1, len(kind.shape))))
        producer = self.graph.ops[self.graph.values[v].producer]
        handle = self.ops[producer.index]
        with handle.location:
            if producer.index in self.slices:
                return stablehlo.ReshapeOp(kind, self.values[self.slices[producer.index]]).result
            if producer.name == _CONSTANT:
                return _spread(handle.clone().results[0], kind, list(range(1, len(kind.shape))))
            operands = [self.made[u] for u in producer.operands]
            if producer.name == _RESHAPE:
                return stablehlo.ReshapeOp(kind, operands[0]).result
            if producer.name == _BROADCAST:
                dims = [0, *(d + 1 for d in handle.attributes["broadcast_dimensions"])]
                return _spread(operands[0], kind, dims)
            # Operands may be scalars.
            kinds = [ir.RankedTensorType.get(kind.shape, u.type.element_type) for u in operands]
            copy = ir.Operation.create(
                handle.name,
                results=[kind],
                operands=[u if u.type == k else _spread(u, k, [0]) for u, k in zip(operands, kinds, strict=True)],
                attributes=attributes_of(handle),
            )
            return copy.results[0]


def _spread(value: Any, kind: Any, dims: Sequence[int]) -> Any:
    return stablehlo.BroadcastInDimOp(kind, value, ir.DenseI64ArrayAttr.get(list(dims))).result
