"""What the micro-batch analysis asks about a module besides its graph, read in one walk in the graph's numbering.

Owns the reading only: regions, constants that are zero, what reductions combine with, grouped convolutions, effects.
"""

from __future__ import annotations

import re
from typing import Any

from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.dialect.callbacks import is_callback
from rhino.graph.data import Graph
from rhino.microbatch import Facts, Region

_COMBINING = frozenset(
    {"stablehlo.reduce", "stablehlo.scatter", "stablehlo.reduce_window", "stablehlo.select_and_scatter"}
)
REGIONS = frozenset({"stablehlo.while", "stablehlo.case", "stablehlo.if"})


def read_facts(graph: Graph, values: list[Any], ops: list[Any]) -> Facts:
    """The facts of a program whose values and ops are numbered as the graph's."""
    ids = {value: i for i, value in enumerate(values)}
    regions: dict[int, tuple[Region, ...]] = {}
    captures: dict[int, tuple[int, ...]] = {}
    zeros: set[int] = set()
    combiners: dict[int, str] = {}
    grouped: dict[int, tuple[int, ...]] = {}
    effects: set[int] = set()
    host: set[int] = set()
    children: dict[tuple[int, Any], list[int]] = {}
    for record, op in zip(graph.ops, ops, strict=True):
        k, name = record.index, record.name
        if record.parent >= 0:
            children.setdefault((record.parent, op.block), []).append(k)
        if len(op.regions) and name not in REGIONS:
            read = (ids.get(v, -1) for inner in functions.walk(op) for v in inner.operands)
            if found_inside := tuple(dict.fromkeys(v for v in read if v >= 0)):
                captures[k] = found_inside
        if is_callback(op):
            host.add(k)
        if name == "stablehlo.constant":
            if record.tag == "splat" and _is_zero(op):
                zeros.add(k)
        elif name in _COMBINING:
            inner = [o.operation.name for o in op.regions[0].blocks[0].operations]
            combiners[k] = inner[0] if len(inner) == 2 else ""
        elif name == "stablehlo.convolution":
            if found := _grouped(op):
                grouped[k] = found
        elif "has_side_effect" in op.attributes and ir.BoolAttr(op.attributes["has_side_effect"]).value:
            at = k
            while at >= 0:  # and with it the loops that it is in
                effects.add(at)
                at = graph.ops[at].parent
    for record, op in zip(graph.ops, ops, strict=True):
        if record.name in REGIONS:
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
    return Facts(regions, frozenset(zeros), combiners, captures, grouped, frozenset(effects), frozenset(host))


def _is_zero(op: Any) -> bool:
    value = ir.DenseElementsAttr(op.attributes["value"]).get_splat_value()
    if isinstance(value, ir.FloatAttr):
        return float(value.value) == 0.0
    return isinstance(value, ir.IntegerAttr) and int(value.value) == 0


def _grouped(op: Any) -> tuple[int, ...]:
    """The dimensions of the first operand that feature groups or batch groups divide."""
    text = str(op.attributes["dimension_numbers"])
    match = re.search(r"\[([^\]]*)\]x", text)
    numbers = [part.strip() for part in match[1].split(",")] if match else []
    found = []
    for attribute, label in (("feature_group_count", "f"), ("batch_group_count", "b")):
        if attribute in op.attributes and ir.IntegerAttr(op.attributes[attribute]).value > 1:
            found.append(numbers.index(label))
    return tuple(found)
