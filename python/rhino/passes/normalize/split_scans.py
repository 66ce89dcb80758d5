"""The pass rhino-split-scans: a loop over layers becomes several, each over its own layers of the stacked arrays."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.errors import RhinoError
from rhino.ir.import_graph import import_graph, number_program
from rhino.ir.scans.flow import ScanFlow, parameter_dims, reads_parameters, trace
from rhino.ir.scans.loops import LOOP, Scan, Uses, read_scan
from rhino.ir.scans.pieces import bounds
from rhino.ir.scans.rewrite import ScanRewriter
from rhino.passes.entry import main_function, require_static_shapes
from rhino.passes.registry import Pass, PassLog, option, register
from rhino.program.data import Graph


@register
class SplitScans(Pass):
    """Split loops over layers into `count` loops, so that a pipeline can be cut between them.

    `lax.scan` over L layers is one loop that reads layer i of stacked parameters [L, ..] in trip i, and a backward loop
    that runs in reverse. Both become `count` loops of L / count trips (sizes differ by at most one), one after the
    other, each reading a slice of the stacked arrays. Whatever else has a dimension of layers is cut alike, wherever it
    flows: saved activations, gradients, optimizer state, the element-wise operations of the update, casts, constants. A
    reduction over the layers, such as a gradient norm, becomes one per piece and a combination of the results. An
    operation that needs all layers at once gets them by a `concatenate` in front.

    A loop is split if an array that it reads layer by layer has its layers from parameters, or if it shares such arrays
    with a loop that is. All others stay as they are: loops over time steps use the same parameters in each trip. So do
    loops whose counter does not run from 0 in steps of 1 to a constant. Of nested loops, the outer one is split.

    Requires: a function @main with static shapes and no calls (run `rhino-inline`), and roles (run
    `rhino-classify-args`).

    Ensures: @main keeps its type and computes what it did, up to the order of sums. Arrays of L layers remain as
    arguments of @main, read through one static slice per piece, and as results, made by one `concatenate` right before
    the return; others are counted as `joined` and `cut`.

    Example:
      ```mlir
      %r:3 = stablehlo.while(%i = %c0, %x = %input, %w = %arg0) : tensor<i32>, tensor<4xf32>, tensor<8x4xf32> ...
      // becomes, with count=2
      %w0 = stablehlo.slice %arg0 [0:4, 0:4] : (tensor<8x4xf32>) -> tensor<4x4xf32>
      %w1 = stablehlo.slice %arg0 [4:8, 0:4] : (tensor<8x4xf32>) -> tensor<4x4xf32>
      %r:3 = stablehlo.while(%i = %c0, %x = %input, %w = %w0) : tensor<i32>, tensor<4xf32>, tensor<4x4xf32> ...
      %s:3 = stablehlo.while(%i = %c0, %x = %r#1, %w = %w1) : tensor<i32>, tensor<4xf32>, tensor<4x4xf32> ...
      ```
    """

    name: ClassVar[str] = "rhino-split-scans"

    count: int = option(2, "how many loops each loop over layers becomes, or as many as it has trips")
    force: bool = option(False, "also split loops that read no stacked parameter, such as loops over time steps")
    explain: bool = option(False, "emit a remark at each loop: how it is split, or why not")

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Find the loops, follow their stacked arrays, rewrite. Raises RhinoError if the count is below 1."""
        if self.count < 1:
            raise RhinoError(f"'{self.name}' needs a count of at least 1, got {self.count}", "give count=2 or more")
        main = main_function(module, self.name)
        require_static_shapes(main, self.name)
        if not any(op.name == LOOP for op in functions.walk(main)):
            return
        graph = import_graph(module)
        values, ops = number_program(main)
        uses = Uses.of(graph)
        found = {op.index: read_scan(graph, ops, uses, op) for op in graph.ops if op.name == LOOP}
        if graph.microbatch_loop >= 0:
            found[graph.microbatch_loop] = "its trips are micro-batches"
        scans = [scan for scan in found.values() if isinstance(scan, Scan) and scan.trips > 1]
        dims = parameter_dims(graph)
        seeds = [scan for scan in scans if self.force or reads_parameters(scan, dims)]
        candidates = _outermost(graph, scans, seeds)
        flow = ScanFlow(graph, ops, {scan.op: scan for scan in candidates})
        if self.count > 1:
            trace(flow, [scan for scan in seeds if scan.op in flow.scans])
        if self.explain:
            for index, scan in found.items():
                log.remark(ops[index], self.fate(flow, index, scan))
        log.count("loops", len(flow.active))
        log.count("left", len(found) - len(flow.active))
        if flow.active:
            counts = ScanRewriter(flow, values, self.count).run(main)
            log.count("arguments", len(counts.arguments))
            log.count("results", counts.results)
            log.count("joined", counts.joined)
            log.count("cut", counts.cut)

    def fate(self, flow: ScanFlow, index: int, scan: Scan | str) -> str:
        """What becomes of a loop, as a sentence."""
        if isinstance(scan, str):
            return f"stays whole: {scan}"
        if index in flow.active:
            edges = bounds(scan.trips, self.count)
            sizes = " + ".join(str(b - a) for a, b in pairwise(edges))
            read = sum(not stack.written for stack in scan.stacks)
            how = "in reverse, " if scan.reverse else ""
            return (
                f"{scan.trips} trips become {sizes}: {how}{read} stacked arrays read, {len(scan.stacks) - read} written"
            )
        if scan.trips == 1:
            return "stays whole: it runs once"
        if self.count == 1:
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
