"""The pass rhino-accumulate-in-loops: gradients of stacked layers are added up in the loop that makes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect.constants import is_zeros
from rhino.ir.import_graph import import_graph, number_program
from rhino.ir.scans.loops import LOOP, WRITE, Scan, Stack, Uses, read_scan
from rhino.passes.entry import main_function
from rhino.passes.registry import Pass, PassLog, register
from rhino.program.data import Graph

_ADD = "stablehlo.add"


@register
class AccumulateInLoops(Pass):
    """Let loops over layers add to the accumulators of a micro-batch loop instead of making stacks that are added.

    The backward pass of a scan writes the gradient of layer i into row i of a stack that starts as zeros, and
    rhino-split-microbatch adds the stack to an accumulator. Both take the memory of all gradients. With the accumulator
    as what the loop starts with, and each row added to, only one is needed.

    Requires: the loop of rhino-split-microbatch; without it nothing changes.

    Ensures: the same results; each row is added to once per micro-batch, as before.

    Example:
      ```mlir
      %r:2 = stablehlo.while(%i = %c0, %s = %zeros) ... { %t = stablehlo.dynamic_update_slice %s, %g, %i, %c0 }
      %n = stablehlo.add %acc, %r#1
      // becomes, with %r#1 in the place of %n
      %r:2 = stablehlo.while(%i = %c0, %s = %acc) ... {
        %row = stablehlo.dynamic_slice %s, %i, %c0, sizes = [1, 4]
        %sum = stablehlo.add %row, %g
        %t = stablehlo.dynamic_update_slice %s, %sum, %i, %c0
      }
      ```
    """

    name: ClassVar[str] = "rhino-accumulate-in-loops"

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Find such stacks and rewrite them in place. Time is linear in operations."""
        main = main_function(module, self.name)
        graph = import_graph(module)
        if graph.microbatch_loop < 0:
            return
        _, ops = number_program(main)
        uses = Uses.of(graph)
        outer = graph.ops[graph.microbatch_loop]
        carried = {tie[2] for tie in outer.ties}
        for op in graph.ops[outer.index + 1 : outer.region_end]:
            if op.name != LOOP or op.parent != outer.index:
                continue
            scan = read_scan(graph, ops, uses, op)
            if not isinstance(scan, Scan):
                continue
            for stack in scan.stacks:
                added = _added(graph, uses, stack, carried)
                if added is not None and only_written(graph, uses, stack, op.index) and _is_zero(graph, ops, stack):
                    _rewrite(graph, ops, scan, stack, added)
                    log.count("stacks")


def _added(graph: Graph, uses: Uses, stack: Stack, carried: set[int]) -> tuple[int, int] | None:
    """The op that adds the stack to an accumulator, and which of its operands that is; None if it is used otherwise."""
    if not stack.written or stack.result < 0 or len(stack.accesses) != 1 or uses.passed.get(stack.result):
        return None
    readers = uses.readers[stack.result]
    if len(readers) != 1 or graph.ops[readers[0]].name != _ADD:
        return None
    add = graph.ops[readers[0]]
    for slot, v in enumerate(add.operands):
        if v in carried and add.operands[1 - slot] == stack.result and uses.readers[v] == [add.index]:
            return add.index, slot
    return None


def only_written(graph: Graph, uses: Uses, stack: Stack, loop: int) -> bool:
    """Whether the loop does nothing with the stack but write its rows."""
    tie = graph.ops[loop].ties[stack.position]
    write = graph.ops[stack.accesses[0]]
    return (
        write.name == WRITE
        and write.parent == loop
        and write.operands[0] == tie[2]
        and uses.readers[tie[2]] == [write.index]
        and not uses.readers[tie[1]]
        and tie[3] == write.results[0]
        and not uses.readers[write.results[0]]
    )


def _is_zero(graph: Graph, ops: Sequence[Any], stack: Stack) -> bool:
    """Whether the stack starts as zeros."""
    producer = graph.values[stack.value].producer
    while producer >= 0 and graph.ops[producer].name == "stablehlo.broadcast_in_dim":
        producer = graph.values[graph.ops[producer].operands[0]].producer
    return producer >= 0 and is_zeros(ops[producer])


def _rewrite(graph: Graph, ops: Sequence[Any], scan: Scan, stack: Stack, added: tuple[int, int]) -> None:
    loop, write, (index, slot) = ops[scan.op], ops[stack.accesses[0]], added
    add = ops[index]
    update = write.operands[1]
    with write.location, ir.InsertionPoint(write):
        sizes = ir.DenseI64ArrayAttr.get(list(update.type.shape))
        row = stablehlo.DynamicSliceOp(write.operands[0], list(write.operands)[2:], sizes).result
        write.operands[1] = stablehlo.AddOp(row, update).result
    loop.operands[stack.position] = add.operands[slot]
    add.results[0].replace_all_uses_with(loop.results[stack.position])
    add.erase()
