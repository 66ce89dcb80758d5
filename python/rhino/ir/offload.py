"""A step with optimizer state in the memory of the host: each update brings its own, and returns it.

Owns the rewrite (docs/design/offload.md). Which state that can be is `rhino.program.hosted`'s; for how much of it, and
who has it done, the planner's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect import functions
from rhino.dialect.attributes import RhinoHosted
from rhino.dialect.memories import DEVICE, HOST, KIND, place
from rhino.ir.hosted_rows import write_by_rows
from rhino.ir.import_graph import import_graph, number_program
from rhino.program.data import Graph
from rhino.program.hosted import HostedUpdate, hosted_updates, in_order, waits_in_memory


@dataclass(frozen=True, slots=True)
class Offloaded:
    """What came of it: updates whose state the hosts keep, and how many arguments come from there before the step."""

    updates: tuple[HostedUpdate, ...]
    brought: int


def offload(module: ir.Module, count: int = -1) -> Offloaded:
    """Keeps the state of the largest updates in the memory of the host, in place; all of them by default.

    What another program keeps there (`rhino.hosted`) this one does, too: in one of the updates, which come on top of
    the number, or, where it is read or made otherwise, brought before it is first read.

    Returns: these. Their arguments and results say where they are (`rhino.dialect.memories`).
    """
    graph = import_graph(module)
    main = functions.find(module, "main")
    assert main is not None, "it was imported"
    given = {k for k, held in enumerate(functions.argument_attributes(main)) if RhinoHosted.name in held}
    updates = hosted_updates(graph)
    shared = [update for update in updates if not given.isdisjoint(k for k, _ in update.state)]
    others = [update for update in updates if update not in shared]
    chosen = [*shared, *others[: None if count < 0 else count]]
    values, ops = number_program(main)
    apart = given.difference(k for update in shared for k, _ in update.state)
    _bring(graph, apart, values, main)
    if not chosen:
        return Offloaded((), len(apart))
    block = main.regions[0].blocks[0]
    order = _joined(in_order(graph, chosen))
    _arrange(block, ops, [o for item in order for o in (item.ops if isinstance(item, HostedUpdate) else (item,))])
    before: list[Any] = []
    for item in order:
        if isinstance(item, HostedUpdate):
            before = _write(graph, item, values, ops, block, before)
    _mark(main, [pair for update in chosen for pair in update.state])
    return Offloaded(tuple(chosen), len(apart))


def _joined(order: Iterable[HostedUpdate | int]) -> list[HostedUpdate | int]:
    """The same with updates that follow each other, of as many layers, as one: a loop has all of a layer."""
    found: list[HostedUpdate | int] = []
    for item in order:
        last = found[-1] if found else -1
        if isinstance(item, HostedUpdate) and isinstance(last, HostedUpdate) and item.rows == last.rows > 1:
            found[-1] = last.joined(item)
        else:
            found.append(item)
    return found


def _bring(graph: Graph, arguments: Iterable[int], values: Sequence[Any], main: Any) -> None:
    """Brings arguments that the hosts keep before the step, and returns what takes their place behind it."""
    block = main.regions[0].blocks[0]
    end = block.operations[len(block.operations) - 1].operation
    pairs = []
    for k in sorted(arguments):
        argument, alias = values[graph.arguments[k].value], graph.arguments[k].alias
        readers = list(argument.uses)
        with main.context, main.location, ir.InsertionPoint.at_block_begin(block):
            here = place(argument, DEVICE)
        for use in readers:
            use.owner.operands[use.operand_number] = here
        if alias >= 0:
            with main.context, main.location, ir.InsertionPoint(end):
                end.operands[alias] = place(end.operands[alias], HOST)
        pairs.append((k, alias))
    _mark(main, pairs)


def _arrange(block: Any, ops: Sequence[Any], order: Iterable[int]) -> None:
    """Puts the operations of a block in an order, before its terminator."""
    end = block.operations[len(block.operations) - 1]
    for o in order:
        ops[o].move_before(end)


def _write(
    graph: Graph, update: HostedUpdate, values: list[Any], ops: Sequence[Any], block: Any, before: Sequence[Any]
) -> list[Any]:
    """Brings the state before an update and returns it behind: what the next update waits for.

    One waits for the other behind a barrier (`XLA: barriers-hold`): or XLA brings all state early, or returns it late.
    """
    first, last = ops[update.ops[0]], ops[update.ops[-1]]
    arguments = [values[graph.arguments[k].value] for k, _ in update.state]
    if not before and (late := waits_in_memory(graph, update)) >= 0:
        before = [values[late]]
    with first.context, first.location, ir.InsertionPoint(first):
        barrier = stablehlo.OptimizationBarrierOp([*arguments, *before]).operation
        held = list(barrier.results)[: len(arguments)]
    if update.rows > 1:
        return write_by_rows(graph, update, held, values, ops)
    with first.context, first.location, ir.InsertionPoint(first):
        brought = {a: place(v, DEVICE) for a, v in zip(arguments, held, strict=True)}
    for o in update.ops:
        for position, operand in enumerate(ops[o].operands):
            if operand in brought:
                ops[o].operands[position] = brought[operand]
    end = block.operations[len(block.operations) - 1].operation
    there: list[Any] = []
    with last.context, last.location, ir.InsertionPoint.after(last):
        for _, alias in update.state:
            there.append(place(values[graph.outputs[alias]], HOST))
            end.operands[alias] = there[-1]
    return there


def _mark(main: Any, state: Iterable[tuple[int, int]]) -> None:
    given, returned = functions.argument_attributes(main), functions.result_attributes(main)
    for argument, alias in state:
        given[argument].pop(RhinoHosted.name, None)
        for attributes in (given[argument], *([returned[alias]] if alias >= 0 else [])):
            attributes[KIND] = ir.StringAttr.get(HOST, main.context)
    functions.set_argument_attributes(main, given)
    functions.set_result_attributes(main, returned)
