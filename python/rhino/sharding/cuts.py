"""The memory limit as linear rows: what is alive at one program point, as a function of the decisions.

Owns cutting planes for memory: a plan over the limit yields a row at its peak (docs/design/search.md, "Memory"). Knows
nothing of how they are solved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rhino.program.data import Graph
from rhino.program.memory import Lifetimes, shortened
from rhino.sharding.costs import Costs, States
from rhino.sharding.kept import free_parts, shorter
from rhino.sharding.layout import shards
from rhino.sharding.problem import PARTIAL
from rhino.sharding.returning import made_bytes, passing_bytes
from rhino.sharding.sliced import sliced
from rhino.sharding.uneven import share
from rhino.sharding.waiting import waiting

if TYPE_CHECKING:
    from rhino.sharding.program import AxisProgram

# Aim a little below the limit: rows are exact for values, and close for copies whose readers differ.
AIM = 0.97
# Rounding of sums of bytes, as a share of the room.
_SLACK = 1e-9


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """What may be alive at one op, whatever the plan.

    `values[class, dim classes]` are undivided bytes of cones' values, and of what XLA keeps besides; `copies[t]` how
    many of the transfers tied to t could have a converted copy then; `partials[t, class, view]` how many partial
    results could wait for reduction; `apart[t, class, view]` how many results could be written apart;
    `returned[t, passing]` how many next values of parameters could be there as they are made, beside the parameters,
    and whether they are on the way to these; `fixed` bytes that no decision divides.
    """

    room: float
    values: dict[tuple[int, tuple[int, ...]], int]
    copies: dict[int, int]
    partials: dict[tuple[int, int, tuple[int, ...]], int]
    apart: dict[tuple[int, int, tuple[int, ...]], int]
    returned: dict[tuple[int, bool], int]
    fixed: int

    def loosened(self) -> MemoryRow:
        """The same right at the limit."""
        return self.scaled(1 / AIM)

    def scaled(self, factor: float) -> MemoryRow:
        """The same with so many times the room."""
        return replace(self, room=self.room * factor)

    def before(self, parts: int) -> MemoryRow:
        """What must hold before axes are placed that split all that decisions divide into so many parts at best."""
        return replace(self, room=self.fixed + (self.room - self.fixed) * parts)


def cut_at(costs: Costs, states: Sequence[States], life: Lifetimes, at: int, limit: int) -> MemoryRow:
    """The cut at op `at`; `states` are of the plan over the limit, for free layouts and how long values are kept."""
    problem, quotient = costs.problem, costs.quotient
    graph = problem.graph
    weights, others = life.weights, life.others
    kept = shortened(life, shorter(costs, states, life, sliced(costs, states, life).ends))
    alive = [(v, weights.get(v, others)) for v, first, last in kept if first <= at <= last]
    values, fixed = _kept(costs, states, (*alive, *_arguments(graph)))
    for extra in costs.scratch(life):
        if extra.first <= at <= extra.last:
            key = (quotient.klass[extra.node], extra.classes)
            values[key] = values.get(key, 0) + others * extra.nbytes
    wide = costs.wide(life)
    copies: dict[int, int] = {}
    partials: dict[tuple[int, int, tuple[int, ...]], int] = {}
    apart: dict[tuple[int, int, tuple[int, ...]], int] = {}
    returned: dict[tuple[int, bool], int] = {}
    waits = waiting(costs, states, life, (t for t in problem.transfers if t.kind == "define"))
    for transfer in problem.transfers:
        tied = quotient.tied[transfer.index]
        if transfer.kind == "use":
            readers = [problem.nodes[t.node].ops[0] for t in transfer.targets if problem.nodes[t.node].kind == "op"]
            if readers and min(readers) <= at <= max(readers):
                copies[tied] = copies.get(tied, 0) + others * (3 if at in readers and transfer.value in wide else 1)
        elif transfer.kind == "return":
            if transfer.op <= at:
                key2 = (tied, transfer.op == at)
                returned[key2] = returned.get(key2, 0) + others
        else:
            for source in transfer.sources:
                key3 = (tied, quotient.klass[source.node], source.view)
                span = waits.get((transfer.index, source.node))
                if span is not None and span[0] <= at <= span[1]:
                    partials[key3] = partials.get(key3, 0) + others
                if source.op in costs.apart and transfer.targets[0].node >= 0 and source.op <= at <= source.op + 1:
                    apart[key3] = apart.get(key3, 0) + others
    return MemoryRow(limit * AIM, values, copies, partials, apart, returned, fixed)


def arguments_cut(costs: Costs, states: Sequence[States], limit: int) -> MemoryRow:
    """The cut for arguments alone, which are there from the first op to the last; `states` as of `cut_at`."""
    values, fixed = _kept(costs, states, _arguments(costs.problem.graph))
    return MemoryRow(limit * AIM, values, {}, {}, {}, {}, fixed)


def _arguments(graph: Graph) -> Iterator[tuple[int, int]]:
    return ((a.value, 1) for a in graph.arguments if a.value not in graph.hosted)


def _kept(
    costs: Costs, states: Sequence[States], held: Iterable[tuple[int, int]]
) -> tuple[dict[tuple[int, tuple[int, ...]], int], int]:
    """The `values` and `fixed` of a row, of values that are held so many times."""
    problem, graph = costs.problem, costs.problem.graph
    values: dict[tuple[int, tuple[int, ...]], int] = {}
    fixed = 0
    for v, times in held:
        n = problem.node_of[v]
        if n < 0:
            fixed += times * share(graph.values[v].nbytes, free_parts(costs, states, v))
        else:
            key = (costs.quotient.klass[n], problem.classes[v])
            values[key] = values.get(key, 0) + times * graph.values[v].nbytes
    return values, fixed


def impossible(program: AxisProgram, cut: MemoryRow) -> bool:
    """Whether no states meet the cut, by the values alone: what can be told of a program before `build`."""
    by_class: dict[int, dict[int, float]] = {}
    for k, x, nbytes in _held(program, cut):
        held = by_class.setdefault(k, {})
        held[x] = held.get(x, 0.0) + nbytes
    least = cut.fixed + sum(min(held.values()) for held in by_class.values())
    return least > cut.room * (1 + _SLACK)


def row(program: AxisProgram, cut: MemoryRow) -> tuple[list[tuple[int, float]], float]:
    """The cut as terms over the variables of a program, and the room they have; all in units of the limit."""
    costs = program.costs
    sizes = costs.sizes
    unit = max(cut.room, 1.0)
    terms: dict[int, float] = {}

    def add(variable: int, nbytes: float) -> None:
        terms[variable] = terms.get(variable, 0.0) + nbytes / unit

    for _, x, nbytes in _held(program, cut):
        add(x, nbytes)
    for (t, k, view), count in cut.partials.items():
        value = costs.problem.graph.values[costs.problem.transfers[t].value]
        for s, x in program.x[k].items():
            layout = tuple(view[state] for state in s)
            if PARTIAL in layout:
                add(x, count * value.nbytes / shards(layout, sizes, value.shape))
    for (t, k, view), count in cut.apart.items():
        value = costs.problem.graph.values[costs.problem.transfers[t].value]
        for layout, variable in program.apart(t, k, view):
            add(variable, count * value.nbytes / shards(layout, sizes, value.shape))
    for t, count in cut.copies.items():
        value = costs.problem.graph.values[costs.problem.transfers[t].value]
        for _, end, variables in program.conversions(t):
            for variable in variables:
                add(variable, count * value.nbytes / shards(end, sizes, value.shape))
    for (t, passing), count in cut.returned.items():
        v = costs.problem.transfers[t].value
        for start, end, variables in program.conversions(t):
            nbytes = made_bytes(costs, v, start, end) + (passing_bytes(costs, v, start, end) if passing else 0)
            for variable in variables:
                add(variable, count * nbytes)
    return list(terms.items()), 1.0 - cut.fixed / unit


def _held(program: AxisProgram, cut: MemoryRow) -> Iterator[tuple[int, int, float]]:
    """(class, variable, bytes per device) of the cones' values alive at the cut."""
    costs = program.costs
    for (k, classes), nbytes in cut.values.items():
        node = costs.problem.nodes[costs.quotient.nodes[k]]
        for s, x in program.x[k].items():
            yield k, x, nbytes / node.parts(s, costs.sizes, classes)
