"""Arguments that several stages read in rows, such as the stacked layers of a scan: each stage stores its own rows.

Owns recognising them, and the results put together from such rows. What they become is the fragments' business.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.dialect.attributes import RhinoRole, RhinoStrided
from rhino.passes.stage.staged_program import Input, StagedProgram

_Pieces = list[tuple[tuple[int, int], Any]]


def store_slices(program: StagedProgram) -> None:
    """Make aliases of the slices of arguments stored in rows, and split the results that are rows of several stages.

    An argument whose buffer a result takes is stored in rows only if that result is made of the same rows.
    """
    attributes = functions.argument_attributes(program.main)
    joined = {i: pieces for i in range(len(program.outputs)) if (pieces := _joined_rows(program, i))}
    aliased = {}
    for i, (argument, given) in enumerate(zip(program.arguments, attributes, strict=True)):
        alias = ir.IntegerAttr(given["tf.aliasing_output"]).value if "tf.aliasing_output" in given else -1
        if alias >= 0:
            aliased[alias] = i
        is_batch = RhinoRole.name in given and RhinoRole.from_attr(given[RhinoRole.name]) == "batch"
        slices = {} if is_batch or _splits_rows(given) else _read_rows(program, argument)
        rows = sorted(slices)
        whole = alias >= 0 and rows != [bounds for bounds, _ in joined.get(alias, [])]
        if len(rows) < 2 or whole:
            joined.pop(alias, None)
            continue
        for (start, stop), values in slices.items():
            for value in values:
                program.alias[value] = Input(i, start, stop)
    for i, pieces in joined.items():
        homes = [node.home if (node := program.node_of(value)) else None for _, value in pieces]
        if i not in aliased and len({home and home.stage for home in homes}) < 2:
            continue
        program.outputs[i] = [(program.source(value), (bounds,)) for bounds, value in pieces]


def _read_rows(program: StagedProgram, argument: Any) -> dict[tuple[int, int], list[Any]]:
    """The results of the slices that are all that reads an argument, by their rows; empty if something else does."""
    found: dict[tuple[int, int], list[Any]] = {}
    shape = ir.ShapedType(argument.type).shape
    for use in argument.uses:
        op = use.owner.operation if hasattr(use.owner, "operation") else use.owner
        if op.name != "stablehlo.slice" or op.results[0] not in program.producer:
            return {}
        start, stop, step = (list(ir.DenseI64ArrayAttr(op.attributes[key])) for key in _SLICE)
        if any(step[d] != 1 for d in range(len(shape))) or start[1:] != [0] * (len(shape) - 1) or stop[1:] != shape[1:]:
            return {}
        found.setdefault((start[0], stop[0]), []).append(op.results[0])
    rows = sorted(found)
    covers = rows and rows[0][0] == 0 and rows[-1][1] == shape[0]
    if not covers or any(left[1] != right[0] for left, right in pairwise(rows)):
        return {}
    return found


_SLICE = ("start_indices", "limit_indices", "strides")


def _joined_rows(program: StagedProgram, result: int) -> _Pieces:
    """The rows a result is a concatenation of, empty if it is none or is read otherwise too."""
    source = program.outputs[result][0][0]
    node = None if isinstance(source, Input) else program.node_of(source)
    if node is None or node.op.name != "stablehlo.concatenate" or len(list(node.op.results[0].uses)) != 1:
        return []
    if ir.IntegerAttr(node.op.attributes["dimension"]).value != 0:
        return []
    pieces: _Pieces = []
    start = 0
    for operand in node.op.operands:
        stop = start + ir.ShapedType(operand.type).shape[0]
        pieces.append(((start, stop), operand))
        start = stop
    return pieces


def _splits_rows(given: dict[str, Any]) -> bool:
    """Whether the first dimension is one that was split into factors: rows of it are not rows of the original."""
    if RhinoStrided.name not in given:
        return False
    return any(entry["dim"] == 0 for entry in RhinoStrided.from_attr(given[RhinoStrided.name])["dims"])
