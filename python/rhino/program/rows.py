"""Sums of rows, such as a softmax's, that a kernel computes inside of itself: it reads its rows once.

Owns which reductions these are on back ends that have such kernels: `XLA: rows-reduced-inside, rows-reduced-apart`; and
what that leaves to other kernels: `XLA: rows-summed-with-another-apart, rows-stacked-apart`. Knows no costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from rhino.program.data import Graph, Op
from rhino.program.fusible import is_fusible, made_of
from rhino.program.fusion import splats

_BROADCAST = "stablehlo.broadcast_in_dim"
_KINDS = ("add", "maximum", "minimum", "multiply")


def memory_of(graph: Graph, real: Sequence[bool], v: int) -> int:
    """The value whose memory another is, in another shape; `real` are those with memory of their own."""
    while not real[v] and (at := graph.values[v].producer) >= 0 and keeps_order(graph, graph.ops[at]):
        v = graph.ops[at].operands[0]
    return v


def keeps_order(graph: Graph, op: Op) -> bool:
    """Whether an op's result is its operand's memory seen otherwise: a reshape, a transposition of dimensions of 1."""
    if len(op.operands) != 1 or not op.results:
        return False
    operand, result = graph.values[op.operands[0]], graph.values[op.results[0]]
    if operand.elements != result.elements or operand.dtype != result.dtype:
        return False
    if op.name not in ("stablehlo.transpose", _BROADCAST):
        return op.name == "stablehlo.reshape"
    if op.rule is None:
        return False
    sizes = op.rule.factor_sizes
    read, made = ([f for dim in m[0] for f in dim if sizes[f] > 1] for m in (op.rule.operands, op.rule.results))
    return read == made


def rows_inside(graph: Graph, real: Sequence[bool]) -> frozenset[int]:
    """Results of reductions over the last dimension that kernels compute inside of themselves.

    They only go back, by one broadcast, to what is made of the rows. On the way there may be what one value per row is
    made into: its negative, a mean. A sum that is read twice, and one of rows that are transposed on their way, has a
    kernel of its own; but a product is made as it is wanted, when all that is transposed is what its operands leave.
    What a sum goes back to is what is summed, itself or made of the same; any other sum is inside only where its kernel
    has one of that kind.

    Args:
      real: `fusion.materialised` of the graph.
    """
    reductions = [op for op in graph.ops if _of_rows(graph, op)]
    if not reductions:
        return frozenset()
    users = graph.users()
    returning = _Returning(graph, real)
    backs = {op.index: back for op in reductions if (back := returning.back(op)) is not None}
    backs = {o: back for o, back in backs.items() if not _is_turned(graph, graph.ops[o], real, users)}
    candidates = frozenset(graph.ops[o].results[0] for o in backs)
    alike = {graph.ops[o].results[0] for o, back in backs.items() if returning.is_alike(graph.ops[o], back)}
    kernels = _Cones(graph, real, candidates, alike)
    return frozenset(v for v in candidates if v in alike or kernels.all_have_one(v))


def stacked_rows(graph: Graph, real: Sequence[bool], inside: AbstractSet[int]) -> list[int]:
    """Values made of what their kernel computes inside, and then copied into a stack: no update is such a kernel's.

    Args:
      inside: as `rows_inside` gives it.
    """
    if not inside:
        return []
    kernels, found = _Cones(graph, real, inside, inside), []
    for op in graph.ops:
        if op.name != "stablehlo.dynamic_update_slice":
            continue
        v = op.operands[1]
        while not real[v] and (maker := graph.values[v].producer) >= 0 and keeps_order(graph, graph.ops[maker]):
            v = graph.ops[maker].operands[0]
        if not real[v] and kernels.has_one(v):
            found.append(v)
    return found


class _Returning:
    """Where reductions go back to."""

    def __init__(self, graph: Graph, real: Sequence[bool]) -> None:
        self.graph, self.real = graph, real
        self.users, self.returned, self.constants = graph.users(), set(graph.outputs), splats(graph)

    def back(self, op: Op) -> Op | None:
        """The op that reads a reduction's result, made as large as what was reduced; None if it is read otherwise."""
        values = self.graph.values
        elements, v = values[op.operands[0]].elements, op.results[0]
        while (found := self._reader(v, op)) is not None:
            made = found.results[0]
            if values[made].elements == elements:
                back = self._reader(made, op) if found.name == _BROADCAST and not self.real[made] else None
                fits = back is not None and is_fusible(back) and values[back.results[0]].elements == elements
                return back if fits else None
            others = (u for u in found.operands if u != v and u not in self.constants)
            if values[made].elements != values[v].elements or any(values[u].elements > 1 for u in others):
                return None
            v = made
        return None

    def is_alike(self, op: Op, back: Op) -> bool:
        """Whether what a reduction goes back to is made of what was reduced, or both of one value."""
        summed = self._made_of(op.operands[0])
        return any(summed & self._made_of(v) for v in back.operands)

    def _reader(self, v: int, op: Op) -> Op | None:
        found = self.graph.ops[self.users[v][0]] if len(self.users[v]) == 1 and v not in self.returned else None
        return found if found is not None and found.parent == op.parent and len(found.results) == 1 else None

    def _made_of(self, v: int) -> set[int]:
        """A value and those that it is made of alone, besides constants, within its kernel."""
        values, found = self.graph.values, {v}
        while not self.real[v] and (maker := values[v].producer) >= 0 and is_fusible(self.graph.ops[maker]):
            of = dict.fromkeys(u for u in self.graph.ops[maker].operands if u not in self.constants)
            if len(of) != 1 or values[next(iter(of))].elements != values[v].elements:
                break
            v = next(iter(of))
            found.add(v)
        return found


class _Cones:
    """What values are made of within their kernels, which compute `candidates` inside: whether `some` are there."""

    def __init__(
        self, graph: Graph, real: Sequence[bool], candidates: AbstractSet[int], some: AbstractSet[int]
    ) -> None:
        self.graph, self.real, self.candidates, self.some = graph, real, candidates, some
        self.users = graph.users()
        self.known: dict[int, bool] = {}

    def all_have_one(self, v: int) -> bool:
        """Whether all kernels that a candidate is part of have one of `some`."""
        queue, seen, found = [v], {v}, False
        for u in queue:
            for o in self.users[u]:
                op = self.graph.ops[o]
                for made in op.results:
                    if made in seen:
                        continue
                    seen.add(made)
                    if not self.real[made] and (is_fusible(op) or made in self.candidates):
                        queue.append(made)
                    elif self.has_one(made):
                        found = True
                    else:
                        return False
        return found

    def has_one(self, v: int) -> bool:
        """Whether one of `some` is among what a value is made of in its kernel."""
        if v not in self.known:
            self.known[v] = self._has_one(v)
        return self.known[v]

    def _has_one(self, v: int) -> bool:
        def goes_on(u: int, maker: Op) -> bool:
            return u == v or (not self.real[u] and (u in self.candidates or is_fusible(maker)))

        return any(u in self.some for u in made_of(self.graph, [v], goes_on))


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
