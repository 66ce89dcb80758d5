"""What the micro-batch analysis asks about a module besides its graph, read in one walk in the graph's numbering.

Owns the reading only: regions, constants that are zero, what reductions combine with, grouped convolutions, effects.
"""

from __future__ import annotations

from typing import Any

from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.dialect.callbacks import is_callback
from rhino.dialect.constants import is_zeros
from rhino.dialect.reducers import REDUCING, combiners_of, starts_neutral
from rhino.ir.convolutions import numbers
from rhino.microbatch import BatchFacts, Region
from rhino.program.data import Graph
from rhino.program.operations import NESTING


def read_facts(graph: Graph, values: list[Any], ops: list[Any]) -> BatchFacts:
    """The facts of a program whose values and ops are numbered as the graph's."""
    ids = {value: i for i, value in enumerate(values)}
    regions: dict[int, tuple[Region, ...]] = {}
    neutral: set[int] = set()
    captures: dict[int, tuple[int, ...]] = {}
    zeros: set[int] = set()
    combiners: dict[int, str] = {}
    grouped: dict[int, tuple[int, ...]] = {}
    effects: set[int] = set()
    host: set[int] = set()
    joins: dict[int, int] = {}
    edges: dict[int, tuple[tuple[int, int] | None, ...]] = {}
    children: dict[tuple[int, Any], list[int]] = {}
    for record, op in zip(graph.ops, ops, strict=True):
        k, name = record.index, record.name
        if record.parent >= 0:
            children.setdefault((record.parent, op.block), []).append(k)
        if len(op.regions) and name not in NESTING:
            read = (ids.get(v, -1) for inner in functions.walk(op) for v in inner.operands)
            if found_inside := tuple(dict.fromkeys(v for v in read if v >= 0)):
                captures[k] = found_inside
        if is_callback(op):
            host.add(k)
        if name in ("stablehlo.constant", "stablehlo.complex"):
            if is_zeros(op):
                zeros.add(k)
        elif name in REDUCING:
            combined = combiners_of(op)
            combiners[k] = f"stablehlo.{combined[0]}" if len(combined) == 1 and combined[0] else ""
            if all(starts_neutral(op, i, kind) for i, kind in enumerate(combined)):
                neutral.add(k)
        elif name == "stablehlo.concatenate":
            joins[k] = ir.IntegerAttr(op.attributes["dimension"]).value
        elif name in ("stablehlo.slice", "stablehlo.pad"):
            edges[k] = _edges(op)
        elif name == "stablehlo.convolution":
            if found := _grouped(op):
                grouped[k] = found
        elif functions.acts(op):
            at = k
            while at >= 0:  # and with it the loops that it is in
                effects.add(at)
                at = graph.ops[at].parent
    for record, op in zip(graph.ops, ops, strict=True):
        if record.name in NESTING:
            found_regions = []
            for region in op.regions:
                block = region.blocks[0]
                last = block.operations[len(block.operations) - 1]
                found_regions.append(
                    Region(
                        tuple(ids[a] for a in block.arguments),
                        tuple(children.get((record.index, block), ())),
                        tuple(ids[v] for v in last.operands),
                    )
                )
            regions[record.index] = tuple(found_regions)
    kept = frozenset(zeros), combiners, frozenset(neutral), captures, grouped, frozenset(effects), frozenset(host)
    return BatchFacts(regions, *kept, joins, edges)


def _edges(op: Any) -> tuple[tuple[int, int] | None, ...]:
    """What a slice or pad adds to the two ends of each dimension; None if it has a stride or pads inside."""

    def numbers(name: str) -> list[int]:
        return list(ir.DenseI64ArrayAttr(op.attributes[name]))

    if op.name == "stablehlo.pad":
        ends = zip(numbers("edge_padding_low"), numbers("edge_padding_high"), strict=True)
        return tuple(None if gap else end for end, gap in zip(ends, numbers("interior_padding"), strict=True))
    starts, limits, strides = (numbers(name) for name in ("start_indices", "limit_indices", "strides"))
    sizes = op.operands[0].type.shape
    ends = zip((-n for n in starts), (n - size for n, size in zip(limits, sizes, strict=True)), strict=True)
    return tuple(None if stride > 1 else end for end, stride in zip(ends, strides, strict=True))


def _grouped(op: Any) -> tuple[int, ...]:
    """The dimensions of the first operand that feature groups or batch groups divide."""
    image, _, _ = numbers(op)
    found = []
    for attribute, label in (("feature_group_count", "f"), ("batch_group_count", "b")):
        if attribute in op.attributes and ir.IntegerAttr(op.attributes[attribute]).value > 1:
            found.append(image.index(label))
    return tuple(found)
