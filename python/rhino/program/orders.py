"""In which order a value's dimensions lie in memory, where that follows from the products around it.

Owns what products and transpositions say of it, and where two orders meet: there XLA transposes what has one of them,
and writes it. `XLA: orders-meet, stacks-transposed`. Knows no mesh and no costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rhino.program.data import Graph, Op, Rule, once
from rhino.program.fusible import is_fusible
from rhino.program.operations import CONSTRAINTS, CONTRACTIONS, SOURCES, stablehlo

_LOOP, _REDUCE = "stablehlo.while", "stablehlo.reduce"
_READ, _UPDATE = "stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice"
_SEEN_OTHERWISE = stablehlo("transpose reshape convert broadcast_in_dim") | CONSTRAINTS
# A value's readers are followed no further.
_FAR = 64

# Dimensions of more than one element, the one whose neighbours lie furthest apart first.
Order = tuple[int, ...]


@once
def orders(graph: Graph) -> Sequence[Order | None]:
    """By value, the order that follows from the product it is made from; None where it may be any.

    A product's result lies as its type says. What is element-wise lies as its first operand that has an order, and a
    transposition moves nothing: it is told to whoever reads.
    """
    found: list[Order | None] = [None] * len(graph.values)
    for op in graph.ops:
        if op.name in CONTRACTIONS:
            for v in op.results:
                found[v] = tuple(d for d, n in enumerate(graph.values[v].shape) if n > 1)
        elif _hands_on(op):
            given = [o for _, o in _given(graph, op, found)]
            found[op.results[0]] = given[0] if given else None
    return found


@once
def transposed(graph: Graph) -> frozenset[int]:
    """Fused values that are written, as a reduction reads them together with what lies in another order.

    `XLA: orders-meet`. Of the two it is the operand that is not as the result.
    """
    known, users = orders(graph), graph.users()
    found = set()
    for op in graph.ops:
        if not _hands_on(op) or op.name in _SEEN_OTHERWISE:
            continue
        given = _given(graph, op, known)
        odd = [v for v, o in given if o != given[0][1]]
        if odd and _is_summed(graph, op, users):
            found.update(odd)
    return frozenset(found)


@once
def stacked(graph: Graph) -> Mapping[int, int]:
    """The results of loops that these write row by row, each with the row of a trip."""
    found: dict[int, int] = {}
    for loop in graph.ops:
        for tie in loop.ties if loop.name == _LOOP else ():
            made = graph.producer(tie[3])
            if made is not None and made.name == _UPDATE and made.operands[0] == tie[2]:
                found[tie[4]] = made.operands[1]
    return found


@once
def copied_stacks(graph: Graph) -> frozenset[tuple[int, int]]:
    """What a loop only reads, and in another order than another loop wrote it: (loop, position among its ties).

    `XLA: stacks-transposed`: all of it is transposed in front of the loop.
    """
    loops = [op for op in graph.ops if op.name == _LOOP]
    if len(loops) < 2:
        return frozenset()
    known, users = orders(graph), graph.users()
    written = {v: o for v, row in stacked(graph).items() if (o := known[row]) is not None}
    found = set()
    for op in loops:
        for position, tie in enumerate(op.ties):
            if tie[2] != tie[3] or tie[0] not in written:
                continue
            rows = [graph.ops[o].results[0] for o in users[tie[2]] if graph.ops[o].name == _READ]
            wanted = next((o for v in rows if (o := _wanted(graph, v, known, users)) is not None), None)
            if wanted is not None and wanted != written[tie[0]]:
                found.add((op.index, position))
    return frozenset(found)


def _hands_on(op: Op) -> bool:
    """Whether an op is element-wise, or sees a value otherwise."""
    return (
        op.rule is not None
        and len(op.results) == 1
        and op.name not in SOURCES
        and (op.name in CONSTRAINTS or is_fusible(op))
    )


def _given(graph: Graph, op: Op, known: Sequence[Order | None]) -> list[tuple[int, Order]]:
    """The operands whose orders say one of all of the result, and that."""
    assert op.rule is not None
    found = []
    for slot, v in enumerate(op.operands):
        order = known[v]
        if order is None:
            continue
        shape = graph.values[op.results[0]].shape
        made = moved(op.rule, op.rule.operands[slot], order, op.rule.results[0], shape)
        if made is not None:
            found.append((v, made))
    return found


def moved(
    rule: Rule,
    source: Sequence[Sequence[int]],
    order: Order,
    target: Sequence[Sequence[int]],
    shape: Sequence[int],
) -> Order | None:
    """An order of one operand or result of an op, told of another one; None if it says not where all dimensions lie.

    Args:
      source, target: factors of their dimensions, as the op's rule has them.
      shape: of the target.
    """
    sizes = rule.factor_sizes
    places = {f: at for at, f in enumerate(f for d in order for f in source[d] if sizes[f] > 1)}
    first: dict[int, int] = {}
    for d, n in enumerate(shape):
        factors = [f for f in target[d] if sizes[f] > 1]
        if n <= 1:
            continue
        at = [places.get(f, -1) for f in factors]
        if not at or at[0] < 0 or at != list(range(at[0], at[0] + len(at))):
            return None
        first[d] = at[0]
    return tuple(sorted(first, key=first.__getitem__))


def _is_summed(graph: Graph, op: Op, users: Sequence[Sequence[int]]) -> bool:
    """Whether a reduction reads what is made of an op's result, element by element."""
    queue, seen = [op.results[0]], {op.results[0]}
    for v in queue:
        for o in users[v]:
            reader = graph.ops[o]
            if reader.name == _REDUCE:
                return True
            if _hands_on(reader) and reader.results[0] not in seen and len(seen) < _FAR:
                seen.add(reader.results[0])
                queue.append(reader.results[0])
    return False


def _wanted(graph: Graph, v: int, known: Sequence[Order | None], users: Sequence[Sequence[int]]) -> Order | None:
    """The order in which the readers of a value want it: that of what it is combined with."""
    chains: list[tuple[int, tuple[tuple[Op, int], ...]]] = [(v, ())]
    seen = {v}
    for value, chain in chains:
        for o in users[value]:
            op = graph.ops[o]
            if not _hands_on(op) or op.results[0] in seen or len(seen) >= _FAR:
                continue
            seen.add(op.results[0])
            step = (*chain, (op, op.operands.index(value)))
            order = known[op.results[0]]
            if order is None:
                chains.append((op.results[0], step))
                continue
            for back, slot in reversed(step):
                assert back.rule is not None
                shape = graph.values[back.operands[slot]].shape
                order = moved(back.rule, back.rule.results[0], order, back.rule.operands[slot], shape)
                if order is None:
                    break
            if order is not None:
                return order
    return None
