"""One trip of a loop on two streams, computing and sending: what it does, and how long it takes.

XLA runs one collective at a time beside computing. Between two that computing waits for there is room for others, of
parameters and gradients, only as long as what is computed there takes: what is longer holds the next one up. Owns where
in a trip what is, and that simulation. What a plan makes of it is in `rhino.sharding.crowding`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from rhino.program.data import Graph
from rhino.sharding.overlap import leads_to_products
from rhino.sharding.problem import Problem
from rhino.sharding.symmetry import Quotient

# Of one operation: where a transfer is before what reads it or behind what makes it, and what else follows is.
_AROUND, _BEHIND = 0.4, 0.5


class Stream(IntEnum):
    """What a trip does one after the other.

    Of computing, what leads to further products, and what does not: a weight's gradient is computed whenever there is
    nothing else, as soon as what it is made of is there. And collectives that computing waits for.
    """

    COMPUTES = 0
    COMPUTES_APART = 1
    WAITS = 2


class TripPart(NamedTuple):
    """One of these things: its place in the order of the program, and what it takes."""

    at: float
    stream: Stream
    seconds: float


class Computed(NamedTuple):
    """An operation of a trip: of the computing of its class, the share that it is in one trip."""

    at: float
    stream: Stream
    klass: int
    share: float


class Trip(NamedTuple):
    """What each trip of a loop does, whatever the plan.

    Attributes:
      window: that of the loop (`rhino.sharding.hiding`).
      executions: of its body in a step.
      computed: its operations.
      sent: places of its transfers, and the tied ones that stand for them.
      lost: places of decisions that may gather by themselves, and their classes.
    """

    window: int
    executions: int
    computed: Sequence[Computed]
    sent: Sequence[tuple[float, int]]
    lost: Sequence[tuple[float, int]]


def trips(problem: Problem, quotient: Quotient, seconds: Sequence[float], windows: Mapping[int, int]) -> list[Trip]:
    """The trips of loops.

    Args:
      seconds: per op, of its undivided computing in a step.
      windows: of the loops.
    """
    graph = problem.graph
    ready = _ready(graph)
    computed: dict[int, list[Computed]] = {loop: [] for loop in windows}
    sent: dict[int, list[tuple[float, int]]] = {loop: [] for loop in windows}
    lost: dict[int, list[tuple[float, int]]] = {loop: [] for loop in windows}
    for n, node in enumerate(problem.nodes):
        k, total = quotient.klass[n], sum(seconds[o] for o in node.ops)
        gathers = n in problem.losses or (node.kind == "op" and graph.ops[node.ops[0]].manual is not None)
        if gathers and (loop := loop_around(graph, node.ops[0])) in lost:
            lost[loop].append((node.ops[0], k))
        for o in node.ops:
            op = graph.ops[o]
            if seconds[o] and (loop := loop_around(graph, o)) in computed:
                stream = Stream.COMPUTES if ready[o] == o else Stream.COMPUTES_APART
                computed[loop].append(Computed(ready[o], stream, k, seconds[o] / total / op.trips))
    for transfer in problem.transfers:
        if (loop := loop_around(graph, transfer.op)) in sent:
            at = transfer.op + (-_AROUND if transfer.kind == "use" else _AROUND)
            sent[loop].append((at, quotient.tied[transfer.index]))
    return [
        Trip(window, graph.ops[loop].trips * graph.ops[loop].iterations, computed[loop], sent[loop], lost[loop])
        for loop, window in sorted(windows.items())
    ]


def _ready(graph: Graph) -> list[float]:
    """Per op, its place in the order of the program; of one that leads to no products, that behind what it reads."""
    leads = leads_to_products(graph)
    found: list[float] = []
    for op in graph.ops:
        makers = [maker for v in op.operands if (maker := graph.values[v].producer) >= 0]
        behind = max((found[o] + _BEHIND if found[o] == o else found[o] for o in makers), default=-1.0)
        found.append(float(op.index) if any(leads[v] for v in op.results) else behind)
    return found


def trip_seconds(parts: Iterable[TripPart], others: Iterable[float]) -> float:
    """How long a trip takes.

    Args:
      parts: in any order.
      others: seconds of the collectives that nothing in the trip waits for, nor they for anything in it: another one
        makes what they send, or reads it. Whenever nothing else is sent the longest of them begins.
    """
    now = sent = apart = 0.0
    left = sorted(others)
    for _, stream, seconds in sorted(parts):
        if stream == Stream.COMPUTES_APART:
            apart += seconds
        elif stream == Stream.COMPUTES:
            begun, now = now, now + seconds
            while left and sent < now:
                sent = max(sent, begun) + left.pop()
        else:
            sent = max(sent, now) + seconds
            apart -= min(apart, sent - now)
            now = sent
    return max(now + apart, sent + sum(left))


def loop_around(graph: Graph, o: int) -> int:
    """The loop whose body an op is in; -1 for none."""
    # Not by values: a call may have neither operands nor results.
    at = graph.ops[o].parent
    while at >= 0 and graph.ops[at].name != "stablehlo.while":
        at = graph.ops[at].parent
    return at
