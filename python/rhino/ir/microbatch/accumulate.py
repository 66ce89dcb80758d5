"""Stacks of gradients that loops over layers write and a micro-batch loop adds up: added to its accumulators instead.

Owns finding and rewriting them. Knows nothing of how the micro-batch loop was made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect import functions
from rhino.dialect.attributes import RhinoMicrobatches
from rhino.dialect.constants import is_zeros
from rhino.ir.import_graph import import_graph, number_program
from rhino.ir.scans.loops import LOOP, WRITE, Scan, Stack, Uses, read_scan
from rhino.program.data import Graph

_ADD = "stablehlo.add"


def accumulate_in_loops(module: ir.Module) -> int:
    """As rhino-accumulate-in-loops; returns how many stacks it did so for. Time is linear in operations."""
    main = functions.find(module, "main")
    assert main is not None, "it was split"
    # To read a program of many layers that are no loop takes seconds.
    if not any(op.operation.name == LOOP for op in _of_a_microbatch(main)):
        return 0
    graph = import_graph(module)
    _, ops = number_program(main)
    uses = Uses.of(graph)
    outer = graph.ops[graph.microbatch_loop]
    carried = {tie[2] for tie in outer.ties}
    stacks = 0
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
                stacks += 1
    return stacks


def _of_a_microbatch(main: Any) -> Iterable[Any]:
    """The operations of the loop over micro-batches; none where there is none."""
    for view in main.regions[0].blocks[0].operations:
        if RhinoMicrobatches.name in view.operation.attributes:
            return view.operation.regions[1].blocks[0].operations
    return ()


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
