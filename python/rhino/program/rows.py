"""Sums of rows, such as a softmax's, that a kernel computes inside of itself: it reads its rows once.

Owns which reductions these are on back ends that have such kernels, `XLA: rows-reduced-inside, rows-reduced-apart`.
Knows no costs.
"""

from __future__ import annotations

from collections.abc import Sequence

from rhino.program.data import Graph, Op
from rhino.program.fusible import is_fusible
from rhino.program.fusion import splats

_KINDS = ("add", "maximum", "minimum", "multiply")


def keeps_order(graph: Graph, op: Op) -> bool:
    """Whether an op's result is its operand's memory seen otherwise: a reshape, a transposition of dimensions of 1."""
    if len(op.operands) != 1 or not op.results:
        return False
    operand, result = graph.values[op.operands[0]], graph.values[op.results[0]]
    if operand.elements != result.elements or operand.dtype != result.dtype:
        return False
    if op.name not in ("stablehlo.transpose", "stablehlo.broadcast_in_dim"):
        return op.name == "stablehlo.reshape"
    if op.rule is None:
        return False
    sizes = op.rule.factor_sizes
    read, made = ([f for dim in m[0] for f in dim if sizes[f] > 1] for m in (op.rule.operands, op.rule.results))
    return read == made


def rows_inside(graph: Graph, real: Sequence[bool]) -> frozenset[int]:
    """Results of reductions over the last dimension that only go back, by one broadcast, to what is made of the rows.

    On the way there may be what one value per row is made into: its negative, a mean. A sum that is read twice, and one
    of rows that are transposed on their way, has a kernel of its own; but a product is made as it is wanted, when all
    that is transposed is what its operands leave.

    Args:
      real: `fusion.materialised` of the graph.
    """
    reductions = [op for op in graph.ops if _of_rows(graph, op)]
    if not reductions:
        return frozenset()
    users, returned, constants = graph.users(), set(graph.outputs), splats(graph)

    def reader(v: int, op: Op) -> Op | None:
        found = graph.ops[users[v][0]] if len(users[v]) == 1 and v not in returned else None
        return found if found is not None and found.parent == op.parent and len(found.results) == 1 else None

    def goes_back(op: Op) -> bool:
        elements, v = graph.values[op.operands[0]].elements, op.results[0]
        while (found := reader(v, op)) is not None:
            made = found.results[0]
            if graph.values[made].elements == elements:
                back = reader(made, op) if found.name == "stablehlo.broadcast_in_dim" and not real[made] else None
                return back is not None and is_fusible(back) and graph.values[back.results[0]].elements == elements
            others = (u for u in found.operands if u != v and u not in constants)
            if graph.values[made].elements != graph.values[v].elements or any(
                graph.values[u].elements > 1 for u in others
            ):
                return False
            v = made
        return False

    return frozenset(op.results[0] for op in reductions if goes_back(op) and not _is_turned(graph, op, real, users))


def _of_rows(graph: Graph, op: Op) -> bool:
    """Whether an op reduces floats over the last dimension, and over no other one that has more than one element."""
    if op.name != "stablehlo.reduce" or len(op.results) != 1 or op.rule is None or op.tag not in _KINDS:
        return False
    operand, rows = graph.values[op.operands[0]], graph.values[op.results[0]].elements
    return (
        len(operand.shape) > 0
        and operand.shape[-1] > 1
        and operand.elements == rows * operand.shape[-1]
        and rows > 1
        and "f" in operand.dtype
        and set(op.rule.operands[0][-1]) <= set(op.rule.reduction)
    )


def _is_turned(graph: Graph, op: Op, real: Sequence[bool], users: Sequence[Sequence[int]]) -> bool:
    """Whether what a reduction sums is transposed between memory and it."""
    elements = graph.values[op.operands[0]].elements
    queue = [op.operands[0]]
    seen = set(queue)
    for v in queue:
        if real[v] or graph.values[v].producer < 0:
            continue
        maker = graph.ops[graph.values[v].producer]
        turns = maker.name == "stablehlo.transpose" and not keeps_order(graph, maker)
        if turns and (len(users[maker.operands[0]]) > 1 or not _swaps_operands(graph, maker)):
            return True
        fresh = [u for u in maker.operands if u not in seen and graph.values[u].elements == elements]
        seen.update(fresh)
        queue.extend(fresh)
    return False


def _swaps_operands(graph: Graph, op: Op) -> bool:
    """Whether a transposed product is the product of its operands the other way round, a dimension of each."""
    v = op.operands[0]
    product = graph.ops[graph.values[v].producer]
    if product.name != "stablehlo.dot_general" or product.rule is None or op.rule is None:
        return False
    *batch, left, right = (set(dim) for dim in product.rule.results[0])
    of_left, of_right = ({f for dim in mapping for f in dim} for mapping in product.rule.operands)
    read, made = op.rule.operands[0], op.rule.results[0]
    return (
        all(dim <= of_left & of_right for dim in batch)
        and not left & of_right
        and not right & of_left
        and (*read[:-2], read[-1], read[-2]) == tuple(made)
    )
