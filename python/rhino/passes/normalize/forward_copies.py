"""The pass rhino-forward-copies: what a loop only copies is taken from where it comes from."""

from __future__ import annotations

from typing import Any, ClassVar

from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.dialect.loops import narrow
from rhino.ir.import_graph import import_graph, number_program
from rhino.ir.scans.loops import LOOP, READ, WRITE, Scan, Uses, read_scan
from rhino.passes.entry import main_function
from rhino.passes.registry import Pass, PassLog, register
from rhino.program.data import Graph, Op


@register
class ForwardCopies(Pass):
    """Read what a loop over layers copies layer by layer from the array that it was copied from.

    `nnx.scan` returns the parameters that its body was given, as any state that the body may have changed: the loop
    copies each layer into another array. That takes the memory of all parameters once more, and lets the updated ones
    depend on a loop over the batch.

    Requires: no calls in @main (run `rhino-inline`).

    Ensures: no result of a loop with a counter from 0 to a constant is read that is, in all its layers, a copy of an
    array that the loop reads and does not change; what was carried for it is gone.

    Example:
      ```mlir
      %r:3 = stablehlo.while(%i = %c0, %w = %arg0, %copy = %zeros) : tensor<i32>, tensor<8x4xf32>, ... do {
        %row = stablehlo.dynamic_slice %w, %i, %c0, sizes = [1, 4]
        %next = stablehlo.dynamic_update_slice %copy, %row, %i, %c0
        ...
      // readers of %r#2 read %arg0; the loop carries %i and %w
      ```
    """

    name: ClassVar[str] = "rhino-forward-copies"

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Find the copies, let their readers read the originals, take them out of the loops."""
        main = main_function(module, self.name)
        writes = [op for op in functions.walk(main) if op.name == WRITE and _copied(op) is not None]
        if not writes or not all(v.type.has_static_shape for op in functions.walk(main) for v in _tensors(op)):
            log.unchanged = True
            return
        graph = import_graph(module)
        values, ops = number_program(main)
        index = {op: k for k, op in enumerate(ops)}
        uses = Uses.of(graph)
        forwarded: dict[int, int] = {}
        dropped: dict[int, list[int]] = {}
        for op in graph.ops:
            scan = read_scan(graph, ops, uses, op) if op.name == LOOP else ""
            if isinstance(scan, Scan):
                for result, position, source in _copies(graph, ops, index, op, scan):
                    forwarded[result] = source
                    dropped.setdefault(op.index, []).append(position)
        for result, source in forwarded.items():
            while source in forwarded:
                source = forwarded[source]
            values[result].replace_all_uses_with(values[source])
        for k, positions in dropped.items():
            for position in positions:
                tie = graph.ops[k].ties[position]
                write = ops[graph.values[tie[3]].producer]
                write.results[0].replace_all_uses_with(values[tie[2]])
                write.erase()
            narrow(ops[k], positions)
        log.count("copies", len(forwarded))


def _tensors(op: Any) -> list[Any]:
    return [v for v in op.results if isinstance(v.type, ir.RankedTensorType)]


def _copied(write: Any) -> Any | None:
    """The operation that reads what a write stores, if that is just read."""
    value = write.operands[1]
    while isinstance(value, ir.OpResult):
        op = value.owner.operation
        if op.name == READ:
            return op
        if op.name == "stablehlo.reshape" or _adds_a_dimension(op):
            value = op.operands[0]
        elif op.name == "stablehlo.optimization_barrier":
            value = op.operands[value.result_number]
        else:
            return None
    return None


def _adds_a_dimension(op: Any) -> bool:
    """Whether a broadcast is a reshape."""
    if op.name != "stablehlo.broadcast_in_dim":
        return False
    given, made = op.operands[0].type.shape, op.results[0].type.shape
    dims = list(ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"]))
    return dims == sorted(dims) and [n for n in given if n != 1] == [n for n in made if n != 1]


def _copies(graph: Graph, ops: list[Any], index: dict[Any, int], op: Op, scan: Scan) -> list[tuple[int, int, int]]:
    """Results that are copies: each with its position, and the value before the loop that it is a copy of."""
    found = []
    read = {access: stack for stack in scan.stacks if not stack.written for access in stack.accesses}
    for stack in scan.stacks:
        end = graph.values[op.ties[stack.position][3]].producer if stack.written else -1
        # It is written once in a trip, and not read.
        if end < 0 or stack.accesses != (end,) or graph.ops[end].name != WRITE:
            continue
        source = _copied(ops[end])
        original = read.get(index.get(source, -1)) if source is not None else None
        if original is None or original.dim != stack.dim:
            continue
        ours, theirs = graph.values[stack.result], graph.values[original.value]
        if (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype):
            found.append((stack.result, stack.position, original.value))
    return found
