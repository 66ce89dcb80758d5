"""The loops over layers of @main split into several each, so that a pipeline can be cut between them.

Owns which loops these are, and why others stay whole. How one is split is in `rewrite`.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.ir.import_graph import import_graph, number_program
from rhino.ir.scans.flow import ScanFlow, parameter_dims, reads_parameters, trace
from rhino.ir.scans.loops import LOOP, Scan, Uses, read_scan
from rhino.ir.scans.pieces import bounds
from rhino.ir.scans.rewrite import ScanRewriter
from rhino.program.data import Graph


def split_scans(
    module: ir.Module, count: int, force: bool = False, tell: Callable[[Any, str], None] | None = None
) -> dict[str, int]:
    """As rhino-split-scans, in place; returns its statistics.

    Args:
      count, force: as its options.
      tell: called with each loop and what becomes of it.
    """
    main = functions.find(module, "main")
    if not any(op.name == LOOP for op in functions.walk(main)):
        return {}
    graph = import_graph(module)
    values, ops = number_program(main)
    uses = Uses.of(graph)
    found = {op.index: read_scan(graph, ops, uses, op) for op in graph.ops if op.name == LOOP}
    if graph.microbatch_loop >= 0:
        found[graph.microbatch_loop] = "its trips are micro-batches"
    scans = [scan for scan in found.values() if isinstance(scan, Scan) and scan.trips > 1]
    dims = parameter_dims(graph)
    seeds = [scan for scan in scans if force or reads_parameters(scan, dims)]
    candidates = _outermost(graph, scans, seeds)
    flow = ScanFlow(graph, ops, {scan.op: scan for scan in candidates})
    if count > 1:
        trace(flow, [scan for scan in seeds if scan.op in flow.scans])
    if tell is not None:
        for index, scan in found.items():
            tell(ops[index], _fate(flow, count, index, scan))
    statistics = {"loops": len(flow.active), "left": len(found) - len(flow.active)}
    if flow.active:
        counts = ScanRewriter(flow, values, count).run(main)
        statistics |= {
            "arguments": len(counts.arguments),
            "results": counts.results,
            "joined": counts.joined,
            "cut": counts.cut,
        }
    return statistics


def _fate(flow: ScanFlow, count: int, index: int, scan: Scan | str) -> str:
    """What becomes of a loop, as a sentence."""
    if isinstance(scan, str):
        return f"stays whole: {scan}"
    if index in flow.active:
        edges = bounds(scan.trips, count)
        sizes = " + ".join(str(b - a) for a, b in pairwise(edges))
        read = sum(not stack.written for stack in scan.stacks)
        how = "in reverse, " if scan.reverse else ""
        return f"{scan.trips} trips become {sizes}: {how}{read} stacked arrays read, {len(scan.stacks) - read} written"
    if scan.trips == 1:
        return "stays whole: it runs once"
    if count == 1:
        return "stays whole: one loop is asked for"
    if index in flow.scans:
        return "stays whole: it reads no stacked parameter"
    last = flow.graph.ops[index].region_end
    if any(index < other < last for other in flow.active):
        return "stays whole: a loop inside it reads the stacked parameters"
    return "stays whole: it is inside a loop that is considered instead"


def _outermost(graph: Graph, scans: Sequence[Scan], seeds: Sequence[Scan]) -> list[Scan]:
    """The loops that may be split: of nested ones the outer, unless only the inner reads stacked parameters."""
    wanted = [scan.op for scan in seeds]
    is_wanted = set(wanted)
    found: list[Scan] = []
    end = 0
    for scan in scans:
        stop = graph.ops[scan.op].region_end
        inner = bisect(wanted, stop) > bisect(wanted, scan.op)
        if scan.op >= end and (scan.op in is_wanted or not inner):
            found.append(scan)
            end = stop
    return found
