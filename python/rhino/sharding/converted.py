"""What a chosen plan converts: copies of values in the layouts that their readers want, and results on their way.

Owns which there are over the whole program, and the layouts that each goes through. Costs nothing, chooses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rhino.program.data import Op
from rhino.sharding.costs import Costs, States
from rhino.sharding.layout import Layout, Order, Placed, Route
from rhino.sharding.problem import REPLICATED, End, LayoutTransfer
from rhino.sharding.symmetry import transfers_where

# Ops that XLA partitions by where their result is, unless told otherwise. XLA: halos-exchanged
_CUTTING = ("stablehlo.slice", "stablehlo.pad", "stablehlo.concatenate", "stablehlo.reverse")


@dataclass(frozen=True, slots=True)
class ConvertedCopy:
    """A value converted for some of its readers: (op index, operand position) pairs, in program order.

    `stops` are the layouts it goes through, one collective from one to the next; the last is what they read.
    """

    value: int
    layout: Layout
    stops: tuple[Placed, ...]
    readers: tuple[tuple[int, int], ...]


def copies(costs: Costs, states: Sequence[States], nesting: Sequence[Order]) -> Iterator[ConvertedCopy]:
    """The converted copies that dots, broadcasts and other ops read, over the whole program.

    A dot of whose result XLA computes but a slice reads a copy in any case, in the layout in which the operand is kept:
    what asks for the slice must not divide what the operand is made of (`XLA: dot-divided-further`).

    Args:
      nesting: per class, how its axes are nested where several split one dimension (`rhino.sharding.nesting`).
    """
    problem, klass = costs.problem, costs.quotient.klass

    def routes(transfer: LayoutTransfer, klass: Sequence[int]) -> Iterator[tuple[End, Layout, Route]]:
        source = transfer.sources[0]
        start = costs.layout(source, states[klass[source.node]])
        for target in transfer.targets:
            end = costs.layout(target, states[klass[target.node]])
            orders = costs.orders(transfer, klass[source.node], klass[target.node], start, end, states, nesting)
            yield target, end, costs.route(transfer.value, start, end, "dot", orders)

    classes = range(len(states))
    further = _divided_further(costs, states)
    for transfer in transfers_where(
        problem,
        costs.quotient,
        "use",
        lambda tied: any(route.stops or end.node in further for end, _, route in routes(tied, classes)),
    ):
        readers: dict[tuple[Layout, Route], list[tuple[int, int]]] = {}
        for target, end, route in routes(transfer, klass):
            if route.stops or klass[target.node] in further:
                readers.setdefault((end, route), []).append((target.op, target.slot))
        for (end, route), ops in readers.items():
            yield ConvertedCopy(transfer.value, end, route.stops or (route.left,), tuple(sorted(ops)))
    for n in problem.losses:
        for v, op, start, end in costs.lost(n, states[klass[n]]):
            orders = costs.orders(None, klass[n], klass[n], start, end, states, nesting)
            route = costs.route(v, start, end, "dot", orders)
            slots = [slot for slot, operand in enumerate(problem.graph.ops[op].operands) if operand == v]
            yield ConvertedCopy(v, end, route.stops, tuple((op, slot) for slot in slots))


def _divided_further(costs: Costs, states: Sequence[States]) -> frozenset[int]:
    """Classes of dots that make whole, along some axis, what is kept in parts there: they make the parts alone."""
    problem, quotient = costs.problem, costs.quotient

    def is_divided(transfer: LayoutTransfer, source: End) -> bool:
        target = transfer.targets[0]
        if target.node < 0 or costs.form(transfer) not in ("dot", "batched"):
            return False
        ends = costs.layout(source, states[source.node]), costs.layout(target, states[target.node])
        return any(s == REPLICATED and t >= 0 for s, t in zip(*ends, strict=True))

    return frozenset(
        source.node
        for transfer, _ in quotient.transfers
        if transfer.kind == "define"
        for source in transfer.sources
        if problem.nodes[quotient.nodes[source.node]].kind == "op" and is_divided(transfer, source)
    )


def outputs(
    costs: Costs, states: Sequence[States], nesting: Sequence[Order]
) -> Iterator[tuple[int, tuple[Placed, ...]]]:
    """Results that their op leaves in another layout than their cone keeps: the layouts they go through, that included.

    A partial result is reduced, or reduced and scattered, on its way to the first.
    """
    problem, klass = costs.problem, costs.quotient.klass
    for transfer in problem.transfers:
        if transfer.kind != "define":
            continue
        for source in transfer.sources:
            n = problem.node_of[source.value]
            if n < 0:
                continue
            kept = tuple(problem.view(source.value)[s] for s in states[klass[n]])
            made = costs.layout(source, states[klass[source.node]])
            orders = costs.orders(transfer, klass[source.node], klass[n], made, kept, states, nesting)
            route = costs.route(transfer.value, made, kept, costs.form(transfer), orders)
            if route.stops:
                yield source.value, (route.left, *route.stops)
    for op in problem.graph.ops:
        if op.name in _CUTTING:
            yield from _cut(costs, states, nesting, op)


def _cut(
    costs: Costs, states: Sequence[States], nesting: Sequence[Order], op: Op
) -> Iterator[tuple[int, tuple[Placed, ...]]]:
    """A slice or the like whose result is split along a dimension that it makes: it is made whole, then split."""
    problem, v = costs.problem, op.results[0]
    n = problem.node_of[v]
    read = [u for u in op.operands if problem.node_of[u] >= 0]
    if n < 0 or (read and all(problem.node_of[u] != n for u in read)):
        return  # what is apart from its operands reads them as it is kept
    known = {c for u in read if problem.node_of[u] == n for c in problem.classes[u]}
    k = costs.quotient.klass[n]
    kept = tuple([problem.view(v)[s] for s in states[k]])
    made = tuple([d if d < 0 or problem.classes[v][d] in known else REPLICATED for d in kept])
    if made != kept:
        route = costs.route(v, made, kept, "dot", costs.orders(None, k, k, made, kept, states, nesting))
        yield v, (route.left, *route.stops)
