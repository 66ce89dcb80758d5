"""Arguments that several stages read in rows, such as the stacked layers of a scan: each stage stores its own rows.

Rows are along any one dimension: Flax stacks layers along the one that its user names.

Owns recognising them, and the results put together from such rows. What they become is the fragments' business.
"""

from __future__ import annotations

from itertools import pairwise
from math import inf
from typing import Any

from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.dialect.attributes import RhinoRole, RhinoStrided
from rhino.ir.fragments.staged_program import StagedProgram, StepInput
from rhino.ir.pins import pinned_whole

_Rows = tuple[tuple[int, int], ...]  # [start, stop) per leading dimension, the last of which is the one that is cut
_Pieces = list[tuple[_Rows, Any]]


def store_slices(program: StagedProgram) -> None:
    """Make aliases of the slices of arguments stored in rows, and split the results that are rows of several stages.

    An argument whose buffer a result takes is stored in rows only if that result is made of the same rows. What is
    pinned as one piece stays one.
    """
    attributes = functions.argument_attributes(program.main)
    results = functions.result_attributes(program.main)
    cut = [i for i in range(len(program.outputs)) if not pinned_whole(results[i])]
    joined = {i: pieces for i in cut if (pieces := _joined_rows(program, i))}
    aliased = {}
    for i, (argument, given) in enumerate(zip(program.arguments, attributes, strict=True)):
        alias = ir.IntegerAttr(given["tf.aliasing_output"]).value if "tf.aliasing_output" in given else -1
        if alias >= 0:
            aliased[alias] = i
        is_batch = RhinoRole.name in given and RhinoRole.from_attr(given[RhinoRole.name]) == "batch"
        slices = {} if is_batch or pinned_whole(given) else _read_rows(program, argument, _first_split(given))
        rows = sorted(slices)
        whole = alias >= 0 and rows != [at for at, _ in joined.get(alias, [])]
        if len(rows) < 2 or whole:
            joined.pop(alias, None)
            continue
        for at, values in slices.items():
            program.alias.update(dict.fromkeys(values, StepInput(i, at)))
    for i, pieces in joined.items():
        homes = [node.home if (node := program.node_of(value)) else None for _, value in pieces]
        if i not in aliased and len({home and home.stage for home in homes}) < 2:
            continue
        program.outputs[i] = [(program.source(value), at) for at, value in pieces]


def _read_rows(program: StagedProgram, argument: Any, most: float) -> dict[_Rows, list[Any]]:
    """The results of the slices that are all that reads an argument, by their rows; empty if something else does.

    Args:
      most: the dimension cut is before this one.
    """
    found: dict[_Rows, list[Any]] = {}
    shape = tuple(ir.ShapedType(argument.type).shape)
    cut: set[int] = set()
    for use in argument.uses:
        op = use.owner.operation if hasattr(use.owner, "operation") else use.owner
        if op.name != "stablehlo.slice" or op.results[0] not in program.producer:
            return {}
        start, stop, step = (tuple(ir.DenseI64ArrayAttr(op.attributes[key])) for key in _SLICE)
        if any(s != 1 for s in step):
            return {}
        bounds = tuple(zip(start, stop, strict=True))
        cut.update(d for d, (low, high) in enumerate(bounds) if (low, high) != (0, shape[d]))
        found.setdefault(bounds, []).append(op.results[0])
    if len(cut) != 1 or min(cut) >= most:
        return {}
    (dim,) = cut
    edges = sorted(at[dim] for at in found)
    covers = edges[0][0] == 0 and edges[-1][1] == shape[dim]
    if not covers or any(left[1] != right[0] for left, right in pairwise(edges)):
        return {}
    return {at[: dim + 1]: values for at, values in found.items()}


_SLICE = ("start_indices", "limit_indices", "strides")


def _joined_rows(program: StagedProgram, result: int) -> _Pieces:
    """The rows a result is a concatenation of, empty if it is none or is read otherwise too."""
    source = program.outputs[result][0][0]
    node = None if isinstance(source, StepInput) else program.node_of(source)
    if node is None or node.op.name != "stablehlo.concatenate" or len(list(node.op.results[0].uses)) != 1:
        return []
    dim = ir.IntegerAttr(node.op.attributes["dimension"]).value
    leading = tuple((0, size) for size in ir.ShapedType(node.op.results[0].type).shape[:dim])
    pieces: _Pieces = []
    start = 0
    for operand in node.op.operands:
        stop = start + ir.ShapedType(operand.type).shape[dim]
        pieces.append(((*leading, (start, stop)), operand))
        start = stop
    return pieces


def _first_split(given: dict[str, Any]) -> float:
    """The first dimension that was split into factors: rows of it or of later ones are not the original's."""
    if RhinoStrided.name not in given:
        return inf
    return min((entry["dim"] for entry in RhinoStrided.from_attr(given[RhinoStrided.name])["dims"]), default=inf)
