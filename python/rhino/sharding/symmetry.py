"""Repeated structure, solved once: decisions that colour refinement cannot tell apart are tied together.

The classes form an equitable partition of the search program, so tying them does not change the optimum of its LP
relaxation (Grohe, Kersting, Mladenov, Selman: Dimension Reduction via Colour Refinement, 2014). A model of 96 equal
layers gives as many classes as one of 12. Owns the partition; knows neither mesh nor costs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import chain, product

from rhino.sharding.problem import End, LayoutTransfer, Problem

_MAX_ROUNDS = 256
View = tuple[int, ...]


@dataclass(slots=True)
class Quotient:
    """The tied problem.

    `klass[n]` is the class of node n; `nodes` and `counts` hold a representative node and the size of each class.
    Each entry of `transfers` stands for `count` equal ones; its ends name classes, and equal targets are listed once.
    `tied[t]` is the index of the transfer that stands for t; `standing` has these by index, and `alike` the indices of
    those that each stands for. `meetings` has, for each two classes that exchange values, what the ends in either see.
    """

    klass: list[int]
    nodes: list[int]
    counts: list[int]
    transfers: list[tuple[LayoutTransfer, int]]
    tied: list[int]
    standing: dict[int, LayoutTransfer] = field(init=False)
    alike: dict[int, list[int]] = field(init=False)
    meetings: dict[tuple[int, int], tuple[tuple[View, ...], tuple[View, ...]]] = field(init=False)

    def __post_init__(self) -> None:
        self.standing = {transfer.index: transfer for transfer, _ in self.transfers}
        self.alike = {index: [] for index in self.standing}
        for t, index in enumerate(self.tied):
            self.alike[index].append(t)
        seen: dict[tuple[int, int], tuple[dict[View, None], dict[View, None]]] = {}
        for transfer, _ in self.transfers:
            for source, target in product(transfer.sources, transfer.targets):
                if target.node >= 0 and target.node != source.node:
                    sources, targets = seen.setdefault((source.node, target.node), ({}, {}))
                    sources[source.view] = targets[target.view] = None
        self.meetings = {pair: (tuple(sources), tuple(targets)) for pair, (sources, targets) in seen.items()}


def transfers_where(
    problem: Problem, quotient: Quotient, kind: str, test: Callable[[LayoutTransfer], bool]
) -> list[LayoutTransfer]:
    """The program's transfers of a kind, in order, for which a test holds.

    Args:
      test: of what tied transfers have in common: it is asked of those that stand for others, whose ends name classes.
    """
    met = [quotient.alike[t.index] for t, _ in quotient.transfers if t.kind == kind and test(t)]
    return [problem.transfers[i] for i in sorted(chain.from_iterable(met))]


def of_most(problem: Problem, quotient: Quotient, kind: str, holds: Callable[[LayoutTransfer], bool]) -> frozenset[int]:
    """Indices of the tied transfers of a kind of most of which something holds that they need not have in common."""
    found = {
        t.index: [holds(problem.transfers[i]) for i in quotient.alike[t.index]]
        for t, _ in quotient.transfers
        if t.kind == kind
    }
    return frozenset(index for index, votes in found.items() if 2 * sum(votes) > len(votes))


class _Interner:
    """Numbers for hashable labels, in order of first sight: the same for the same input, unlike hash()."""

    def __init__(self) -> None:
        self.ids: dict[object, int] = {}

    def __call__(self, label: object) -> int:
        return self.ids.setdefault(label, len(self.ids))


def tie_repeats(problem: Problem) -> Quotient:
    """Refines colours of nodes and transfers until stable, in time O(rounds x transfers)."""
    intern = _Interner()
    marks = _marks(problem)
    colours = [intern((_node_label(problem, n), tuple(marks[n]))) for n in range(len(problem.nodes))]
    labels = [_transfer_label(problem, t) for t in problem.transfers]
    incident: list[list[tuple[int, int]]] = [[] for _ in problem.nodes]
    for t in problem.transfers:
        for side, ends in enumerate((t.sources, t.targets)):
            for end in ends:
                if end.node >= 0:
                    incident[end.node].append((t.index, intern((side, end.view))))
    views = [
        tuple([(e.node, intern(e.view)) for e in ends] for ends in (t.sources, t.targets)) for t in problem.transfers
    ]
    count = len(set(colours))
    for _ in range(_MAX_ROUNDS):
        intern = _Interner()
        hyper = []
        for label, (sources, targets) in zip(labels, views, strict=True):
            source = sorted((colours[n] if n >= 0 else -1, view) for n, view in sources)
            target = sorted((colours[n] if n >= 0 else -1, view) for n, view in targets)
            hyper.append(intern((label, tuple(source), tuple(target))))
        intern = _Interner()
        colours = [
            intern((colour, tuple(sorted((hyper[t], view) for t, view in touching))))
            for colour, touching in zip(colours, incident, strict=True)
        ]
        new = len(intern.ids)
        if new == count:
            break
        count = new
    return _quotient(problem, colours, hyper)


def untied(problem: Problem) -> Quotient:
    """Every decision on its own: for programs so small that nothing needs tying."""
    n = len(problem.nodes)
    transfers = [(t, 1) for t in problem.transfers]
    return Quotient(list(range(n)), list(range(n)), [1] * n, transfers, [t.index for t in problem.transfers])


def _node_label(problem: Problem, n: int) -> object:
    graph = problem.graph
    node = problem.nodes[n]
    if node.kind == "op":
        op = graph.ops[node.ops[0]]
        return ("op", op.name, op.rule, op.trips, op.flops, node.factors, node.uneven, op.kernel, op.manual, op.local)
    members = tuple((graph.values[v].shape, graph.values[v].dtype, problem.classes[v]) for v in node.members)
    ops = tuple((graph.ops[o].name, graph.ops[o].trips) for o in node.ops)
    losses = tuple((c, graph.values[v].shape, graph.ops[o].name) for c, v, o in problem.losses.get(n, ()))
    return ("cone", members, ops, node.limits, node.uneven, losses)


def _marks(problem: Problem) -> list[list[object]]:
    """What sets a node apart beyond its structure: shardings the user gave, and data that comes from the host."""
    marks: list[list[object]] = [[] for _ in problem.nodes]
    nodes = {node.ops[0]: node.index for node in problem.nodes if node.kind == "op"}
    for v, (_, dims) in problem.graph.pins.items():
        given = (dims, problem.graph.loose.get(v))
        if problem.node_of[v] >= 0:
            marks[problem.node_of[v]].append((problem.classes[v], *given))
        if (producer := problem.graph.values[v].producer) in nodes:
            marks[nodes[producer]].append(given)
    for argument in problem.graph.arguments:
        if argument.role == "batch" and problem.node_of[argument.value] >= 0:
            marks[problem.node_of[argument.value]].append(argument.role)
    return marks


def _transfer_label(problem: Problem, t: LayoutTransfer) -> object:
    value = problem.graph.values[t.value]
    return (t.kind, value.shape, value.dtype, t.trips, t.late)


def _quotient(problem: Problem, colours: list[int], hyper: list[int]) -> Quotient:
    order = _Interner()
    klass = [order(c) for c in colours]
    nodes: list[int] = [-1] * len(order.ids)
    counts = [0] * len(order.ids)
    for n, k in enumerate(klass):
        counts[k] += 1
        if nodes[k] < 0:
            nodes[k] = n
    transfers: dict[int, tuple[LayoutTransfer, int]] = {}
    tied_to: list[int] = []
    for t, colour in zip(problem.transfers, hyper, strict=True):
        if colour in transfers:
            representative, count = transfers[colour]
            transfers[colour] = (representative, count + 1)
        else:
            tied = replace(t, sources=_named(t.sources, klass), targets=_once(t.targets, klass))
            transfers[colour] = (tied, 1)
        tied_to.append(transfers[colour][0].index)
    return Quotient(klass, nodes, counts, list(transfers.values()), tied_to)


def _named(ends: list[End], klass: list[int]) -> list[End]:
    """The ends by class: as often as there are, for each source of partial results may be reduced on its own."""
    return [End(klass[e.node] if e.node >= 0 else -1, e.view) for e in ends]


def _once(ends: list[End], klass: list[int]) -> list[End]:
    return list(dict.fromkeys(_named(ends, klass)))
