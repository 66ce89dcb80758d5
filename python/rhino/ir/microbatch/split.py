"""A training step rewritten as a loop over micro-batches: analysed as data, refused at its place, or rewritten.

Owns the order of these. What can be split is decided by `rhino.microbatch`.
"""

from __future__ import annotations

from typing import Any

from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.dialect.attributes import RhinoMicrobatches
from rhino.dialect.reductions import start_apart
from rhino.ir.diagnostics import PassError
from rhino.ir.import_graph import import_graph, number_program
from rhino.ir.microbatch.facts import read_facts
from rhino.ir.microbatch.loop_sums import return_sums
from rhino.ir.microbatch.rewrite import MicrobatchRewriter
from rhino.ir.microbatch.sink import sink_behind
from rhino.microbatch import BatchFacts, MicrobatchPlan, NeededWhole, Onto, Refusal, split_microbatches
from rhino.microbatch.local_sums import local_sums
from rhino.microbatch.remedies import asks, without_asking
from rhino.program.data import Graph


def split_microbatch(
    module: ir.Module, count: int, statistics: str = "batch", graph: Graph | None = None, sums: int = 1
) -> dict[str, int]:
    """As rhino-split-microbatch, in place; returns its statistics. Raises PassError where the step cannot be split.

    Args:
      graph: the module's, where it is known.
    """
    main = functions.find(module, "main")
    graph, values, ops, facts, plan = _split(module, main, count, statistics == "micro-batch", graph)
    local = local_sums(graph, facts, plan, sums) if sums > 1 else frozenset()
    if sums > 1 and local.isdisjoint(plan.sums):
        message = f"nothing that {count} micro-batches add up can be {sums} local sums"
        raise PassError(main, message, ["give a number that divides the examples of a micro-batch, or 1"])
    MicrobatchRewriter(main, graph, values, ops, plan, sums, local).run()
    return {
        "ops-behind-loop": sink_behind(_loop(main)),
        "sums": len(plan.sums),
        "local-sums": len(local.intersection(plan.sums)),
        "stacked-results": len(plan.stacks),
        "ops-in-loop": len(plan.loop),
    }


def _split(
    module: ir.Module, main: Any, count: int, estimates: bool, known: Graph | None = None
) -> tuple[Graph, list[Any], list[Any], BatchFacts, MicrobatchPlan]:
    """The program, its values and operations, and how it is split; sums go where the loop can have them."""
    while True:
        graph, known = known or import_graph(module), None
        values, ops = number_program(main)
        if graph.microbatch_loop >= 0:
            at = ops[graph.microbatch_loop]
            raise PassError(at, "the step is split into micro-batches already", ["run this pass once"])
        facts = read_facts(graph, values, ops)
        try:
            return graph, values, ops, facts, split_microbatches(graph, facts, count, estimates)
        except NeededWhole as loose:
            if not return_sums(graph, values, ops, loose.values):
                raise _error(loose, main, values, ops) from None
        except Onto as onto:
            if not start_apart(ops[onto.op]):
                raise _error(onto, main, values, ops) from None
        except Refusal as refusal:
            error = _error(refusal, main, values, ops)
            if asks(refusal):
                alone = _error(without_asking(refusal), main, values, ops)
                error = error if _would_help(module, main, count) else alone
            raise error from None


def _would_help(module: ir.Module, main: Any, count: int) -> bool:
    """Whether statistics of micro-batches let a step that is refused without them be split."""
    try:
        _split(module, main, count, estimates=True)
    except PassError:
        return False
    return True


def _loop(main: Any) -> Any:
    return next(op for op in functions.walk(main) if RhinoMicrobatches.name in op.attributes)


def _error(refusal: Refusal, main: Any, values: list[Any], ops: list[Any]) -> PassError:
    """The refusal at its place in the module."""
    where = ops[refusal.op] if refusal.op >= 0 else values[refusal.value].location if refusal.value >= 0 else main
    notes = [text if k is None else (ops[k], text) for k, text in refusal.notes]
    return PassError(where, refusal.message, notes)
