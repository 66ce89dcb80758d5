"""State that is on stages already (`rhino.pin`): which values of a program that pins, and to what.

Owns reading the attribute. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.dialect.attributes import RhinoPin
from rhino.ir.meshes import REPLICA_AXIS
from rhino.program.data import Graph

# [start, stop) per leading dimension; () for all.
Rows = tuple[tuple[int, int], ...]


def pinned_stage(attributes: Mapping[str, Any], rows: Rows) -> int | None:
    """The stage that an argument or result, or these rows of it, are pinned to; None where that is none or several."""
    if RhinoPin.name not in attributes:
        return None
    for entry in RhinoPin.from_attr(attributes[RhinoPin.name]):
        kept = entry.get("slice", [])
        inside = (a <= start and stop <= b for (start, stop), (a, b) in zip(rows, kept, strict=False))
        if len(kept) <= len(rows) and all(inside):
            return int(entry["stage"])
    return None


def pinned_whole(attributes: Mapping[str, Any]) -> bool:
    """Whether an argument or result is pinned as one piece."""
    return RhinoPin.name in attributes and any("slice" not in e for e in RhinoPin.from_attr(attributes[RhinoPin.name]))


def read_pins(main: Any, ids: Mapping[Any, int], graph: Graph) -> None:
    """Sets the graph's `stages`, `stage_pins` and `shared_out`, of arguments, results, and the rows these are cut into.

    Args:
      ids: the number of each value.
    """
    block = main.regions[0].blocks[0]
    returned = block.operations[len(block.operations) - 1].operands
    given = functions.argument_attributes(main), functions.result_attributes(main)
    for n, (values, attributes) in enumerate(zip((block.arguments, returned), given, strict=True)):
        for value, pinned in zip(values, attributes, strict=True):
            if RhinoPin.name not in pinned:
                continue
            whole = pinned_whole(pinned)
            entries = RhinoPin.from_attr(pinned[RhinoPin.name])
            shared = [d for d, axes in enumerate(entries[0]["sharding"]) if REPLICA_AXIS in axes]
            for v, rows in [(value, ())] if whole else _made_of(value) if n else _cut_into(value):
                stage = pinned_stage(pinned, rows)
                if stage is not None:
                    graph.stages.setdefault(ids[v], stage)
                    if shared:
                        graph.shared_out.setdefault(ids[v], shared[0])
            for entry in entries:
                name = next((a.name for a in graph.arguments if a.value == ids[value]), "a result")
                dims = tuple(tuple(axis for axis in axes if axis != REPLICA_AXIS) for axes in entry["sharding"])
                graph.stage_pins.setdefault(entry["stage"], {}).setdefault(ids[value], (name, dims))


def _cut_into(argument: Any) -> list[tuple[Any, Rows]]:
    """The slices of an argument, and their rows."""
    found = []
    for use in argument.uses:
        op = use.owner.operation
        if op.name == "stablehlo.slice":
            start, stop = (ir.DenseI64ArrayAttr(op.attributes[key]) for key in ("start_indices", "limit_indices"))
            found.append((op.results[0], tuple(zip(start, stop, strict=True))))
    return found


def _made_of(result: Any) -> list[tuple[Any, Rows]]:
    """What a result is a concatenation of, and its rows."""
    op = None if isinstance(result.owner, ir.Block) else result.owner.operation
    if op is None or op.name != "stablehlo.concatenate":
        return []
    dim, at, found = ir.IntegerAttr(op.attributes["dimension"]).value, 0, []
    for part in op.operands:
        shape = ir.ShapedType(part.type).shape
        rows = [(0, size) for size in shape]
        rows[dim] = at, at + shape[dim]
        found.append((part, tuple(rows)))
        at += shape[dim]
    return found
