"""An update of a stack of layers' state, which the host keeps: a loop over layers that brings one layer's at a time.

Owns that loop. Which updates there are, and of which layers, is `rhino.program.hosted`'s; where one belongs in a step
`rhino.ir.offload`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect.constants import splat
from rhino.dialect.counted_loop import counted_loop
from rhino.dialect.memories import DEVICE, HOST, place
from rhino.dialect.sdy import SHARDING
from rhino.program.data import Graph
from rhino.program.hosted import HostedUpdate


def write_by_rows(
    graph: Graph, update: HostedUpdate, state: Sequence[Any], values: list[Any], ops: Sequence[Any]
) -> list[Any]:
    """Writes an update as a loop over the rows of its stacks, where its operations are, which go.

    Each trip slices the state in the memory of the host and brings the row, computes the update of that, and returns
    the next state to its place. What the update makes besides, such as the parameters, is written into the buffer that
    it is returned in, or a new one.

    Args:
      state: by argument of the update, what is in the memory of the host.
      values: by number, those of the program; they become what the loop makes.

    Returns: the next state, in the memory of the host.
    """
    rows = _Rows(graph, update, state, values, ops)
    first = ops[update.ops[0]]
    with first.context, first.location, ir.InsertionPoint(first):
        made = rows.loop()
    block = first.block
    end = block.operations[len(block.operations) - 1].operation
    for key, v in rows.kept:
        values[v].replace_all_uses_with(made[key])
        values[v] = made[key]
    for k, alias in update.state:
        end.operands[alias] = made[graph.arguments[k].value]
    for o in reversed(update.ops):
        ops[o].erase()
    return [made[graph.arguments[k].value] for k, _ in update.state]


class _Rows:
    """One loop. What it carries is known by the numbers of what goes in, or of what is made where that is new.

    `state` is in the memory of the host, `next` by argument what takes its place there; `kept` are pairs of what else
    is written, and of what; `row` has by number the row in the body.
    """

    def __init__(
        self, graph: Graph, update: HostedUpdate, state: Sequence[Any], values: Sequence[Any], ops: Sequence[Any]
    ) -> None:
        self.graph, self.update, self.values, self.ops = graph, update, values, ops
        arguments = [graph.arguments[k].value for k, _ in update.state]
        self.state = dict(zip(arguments, state, strict=True))
        self.next = dict(zip(arguments, (graph.outputs[alias] for _, alias in update.state), strict=True))
        users, among = graph.users(), set(update.ops)
        returned = {*graph.outputs} - {*self.next.values()}
        made = [graph.ops[o].results[0] for o in update.ops]
        kept = [v for v in made if v in returned or not among.issuperset(users[v])]
        self.kept = [(self._buffer(v), v) for v in kept]
        self.row: dict[int, Any] = {}
        self.zero: Any = None

    def _buffer(self, v: int) -> int:
        """The argument whose buffer a result is returned in; the result's own number where there is none like it."""
        value = self.graph.values[v]
        for a in self.graph.arguments:
            if a.alias >= 0 and self.graph.outputs[a.alias] == v and a.value not in self.state:
                given = self.graph.values[a.value]
                return a.value if (given.shape, given.dtype) == (value.shape, value.dtype) else v
        return v

    def loop(self) -> dict[int, Any]:
        """Makes it at the insertion point; returns what comes out, by number."""
        carried: dict[int, Any] = dict(self.state)
        for key, v in self.kept:
            carried[key] = splat(self.values[v].type, 0) if key == v else self.values[key]
        for v in self.update.waits:
            if (source := self._source(v)) is not None:
                carried.setdefault(source, self.values[source])

        def trip(index: Any, rows: Sequence[Any]) -> list[Any]:
            now = dict(zip(carried, rows, strict=True))
            return list({**now, **self._trip(index, now)}.values())

        zero = splat(ir.RankedTensorType.get([], ir.IntegerType.get_signless(32)), 0)
        loop = counted_loop(zero, self.update.rows, list(carried.values()), trip)
        return dict(zip(carried, list(loop.results)[1:], strict=True))

    def _source(self, v: int) -> int | None:
        """What is carried for a value that the update waits for: the number that it is throughout, if that is made."""
        maker = self.graph.values[v].producer
        op = self.graph.ops[maker] if maker >= 0 else None
        if op is not None and op.name == "stablehlo.constant" and op.tag == "splat":
            return None
        if op is not None and op.name == "stablehlo.broadcast_in_dim" and not self.graph.values[op.operands[0]].shape:
            return op.operands[0]
        return v

    def _trip(self, index: Any, now: Mapping[int, Any]) -> dict[int, Any]:
        """Computes a row of everything; returns the stacks with theirs, by number."""
        self.zero = splat(index.type, 0)
        waits = [v for v in self.update.waits if v not in self.state]
        # All that is sliced in the memory of the host comes before what is brought.
        slices = {v: self._slice(index, now[v]) for v in self.state}
        self.row = {v: place(row, DEVICE) for v, row in slices.items()}
        self.row.update((v, self._taken(index, now, v)) for v in waits)
        for o in self.update.ops:
            self._copy(o)
        back = {key: place(self.row[v], HOST) for key, v in self.next.items()}
        rows = {**back, **{key: self.row[v] for key, v in self.kept}}
        return {
            key: stablehlo.DynamicUpdateSliceOp(now[key], row, self._at(index, now[key])).result
            for key, row in rows.items()
        }

    def _taken(self, index: Any, now: Mapping[int, Any], v: int) -> Any:
        """A row of what the update reads and does not make."""
        value, source = self.values[v], self._source(v)
        if source is None:
            filled = ir.DenseElementsAttr(value.owner.attributes["value"]).get_splat_value()
            kind = _row(value.type) if value.type.shape else value.type
            return stablehlo.ConstantOp(ir.DenseElementsAttr.get_splat(kind, filled)).result
        if not self.graph.values[v].shape:
            return now[v]
        if source != v:
            return stablehlo.BroadcastInDimOp(_row(value.type), now[source], ir.DenseI64ArrayAttr.get([])).result
        return self._slice(index, now[v])

    def _copy(self, o: int) -> None:
        """An operation of the update, of a row."""
        op, (result,) = self.ops[o], self.graph.ops[o].results
        operands = [self.row[v] for v in self.graph.ops[o].operands]
        attributes = {a: op.attributes[a] for a in op.attributes if a != SHARDING}
        with op.location:
            made = ir.Operation.create(op.name, [_row(op.results[0].type)], operands, attributes)
        self.row[result] = made.results[0]

    def _slice(self, index: Any, stack: Any) -> Any:
        sizes = ir.DenseI64ArrayAttr.get(list(_row(stack.type).shape))
        return stablehlo.DynamicSliceOp(stack, self._at(index, stack), sizes).result

    def _at(self, index: Any, stack: Any) -> list[Any]:
        """Where a row begins."""
        return [index, *[self.zero] * (len(stack.type.shape) - 1)]


def _row(stack: Any) -> Any:
    """The type of a row of a stack."""
    return ir.RankedTensorType.get([1, *stack.shape[1:]], stack.element_type)
