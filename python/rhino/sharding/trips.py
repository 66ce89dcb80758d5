"""What a loop does in a trip, and the program around loops, on two streams, computing and sending: how long it takes.

XLA runs one collective at a time beside computing. Between two that computing waits for there is room for others, of
parameters and gradients, only as long as what is computed there takes: what is longer holds the next one up. Nothing is
beside a loop. Owns where in a trip what is, and that simulation. What a plan makes of it is in
`rhino.sharding.crowding`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from rhino.program.data import Graph, Op, once
from rhino.program.layers import made_for_layers
from rhino.sharding.overlap import is_product, leads_to_products
from rhino.sharding.problem import LayoutTransfer, Problem
from rhino.sharding.symmetry import Quotient

# Of one operation: where a transfer is before what reads it or behind what makes it, and what else follows is.
_AROUND, _BEHIND = 0.4, 0.5
_LOOP = "stablehlo.while"


class Stream(IntEnum):
    """What a trip does one after the other.

    Of computing, what leads to further products, and what does not: a weight's gradient is computed whenever there is
    nothing else, as soon as what it is made of is there. Collectives that computing waits for. And loops.
    """

    COMPUTES = 0
    COMPUTES_APART = 1
    WAITS = 2
    LOOPS = 3


class TripPart(NamedTuple):
    """One of these things: its place in the order of the program, and what it takes."""

    at: float
    stream: Stream
    seconds: float


class Beside(NamedTuple):
    """A collective that computing can have beside it: what it takes, and the places between which it is made."""

    seconds: float
    ready: float = -inf
    due: float = inf


class Computed(NamedTuple):
    """An operation of a trip: of the computing of its class, the share that it is in one trip."""

    at: float
    stream: Stream
    klass: int
    share: float


class SentInTrip(NamedTuple):
    """A transfer of a trip: its place if computing waits for it, that which stands for it, and its places if not."""

    at: float
    tied: int
    ready: float
    due: float


class Trip(NamedTuple):
    """What each trip of a loop does, whatever the plan; or the program, around its loops.

    Attributes:
      window: that of the loop (`rhino.sharding.hiding`).
      executions: of its body in a step.
      computed: its operations.
      sent: its transfers.
      lost: places of decisions that may gather by themselves, and their classes.
      loops: places of loops in it.
    """

    window: int
    executions: int
    computed: Sequence[Computed]
    sent: Sequence[SentInTrip]
    lost: Sequence[tuple[float, int]]
    loops: Sequence[float]


def trips(problem: Problem, quotient: Quotient, seconds: Sequence[float], windows: Mapping[int, int]) -> list[Trip]:
    """The trips of loops, and the program around them.

    Args:
      seconds: per op, of its undivided computing in a step.
      windows: of the loops; -1 is none.
    """
    graph = problem.graph
    ready = _ready(graph)
    computed: dict[int, list[Computed]] = {loop: [] for loop in windows}
    sent: dict[int, list[SentInTrip]] = {loop: [] for loop in windows}
    lost: dict[int, list[tuple[float, int]]] = {loop: [] for loop in windows}
    loops: dict[int, list[float]] = {loop: [] for loop in windows}
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
            sent[loop].append(SentInTrip(at, quotient.tied[transfer.index], *_places(graph, transfer)))
    for op in graph.ops:
        computes = op.name == _LOOP and any(seconds[op.index : op.region_end])
        if computes and (around := loop_around(graph, op.index)) in loops:
            loops[around].append(op.index)
    return [
        Trip(
            window, graph.ops[loop].trips * graph.ops[loop].iterations if loop >= 0 else 1,
            computed[loop], sent[loop], lost[loop], loops[loop],
        )
        for loop, window in sorted(windows.items())
    ]  # fmt: skip


def _places(graph: Graph, transfer: LayoutTransfer) -> tuple[float, float]:
    """Between which places of a trip a collective of a parameter or of a gradient is made.

    What is summed of a layer's gradients is that of another trip (`rhino.ir.late_sums`): anywhere. What is gathered is
    not, though XLA's program may have that, too (`rhino.ir.early_gathers`): predictions are nearer to timelines so.
    """
    loop, maker = loop_around(graph, transfer.op), graph.values[transfer.value].producer
    if loop >= 0 and transfer.kind == "define" and transfer.value in made_for_layers(graph):
        return -inf, inf
    inside = maker >= 0 and loop_around(graph, maker) == loop
    made = _made(graph)[maker] + _AROUND if inside else -inf
    return made, _due(graph)[transfer.op] - _AROUND if transfer.kind == "use" else inf


@once
def _ready(graph: Graph) -> Sequence[float]:
    """Per op, its place in the order of the program; of one that leads to no products, that behind what it reads."""
    leads = leads_to_products(graph)
    found: list[float] = []
    for op in graph.ops:
        behind = max((found[o] + _BEHIND if found[o] == o else found[o] for o in _makers(graph, op)), default=-1.0)
        found.append(float(op.index) if op.ties or any(leads[v] for v in op.results) else behind)
    return found


@once
def _made(graph: Graph) -> Sequence[float]:
    """Per op, the place of the last product, or loop, that it is or that it follows from in its trip."""
    places = _ready(graph)
    found: list[float] = []
    for op in graph.ops:
        last = max((found[o] for o in _makers(graph, op) if graph.ops[o].parent == op.parent), default=-inf)
        found.append(places[op.index] if op.ties or is_product(op) else last)
    return found


def _makers(graph: Graph, op: Op) -> list[int]:
    """The operations that make what an operation reads."""
    return [maker for v in op.operands if (maker := graph.values[v].producer) >= 0]


@once
def _due(graph: Graph) -> Sequence[float]:
    """Per op, the place of the first product, or loop, that it is or that follows from it; none is at infinity."""
    leads = leads_to_products(graph)
    read = [inf] * len(graph.values)
    found = [inf] * len(graph.ops)
    for op in reversed(graph.ops):
        first = min((read[v] for v in op.results), default=inf)
        if op.ties or (is_product(op) and any(leads[v] for v in op.results)):
            first = float(op.index)
        found[op.index] = first
        for v in op.operands:
            read[v] = min(read[v], first)
    return found


def trip_seconds(parts: Iterable[TripPart], others: Iterable[Beside]) -> float:
    """How long a trip takes.

    Args:
      parts: in any order.
      others: whenever nothing else is sent, of those that are ready the one that is due first begins, and of several
        the longest. Where one is due, computing waits for it.
    """
    now = sent = apart = 0.0
    later = sorted(others, key=lambda one: -one.ready)
    there: list[tuple[float, float]] = []
    begun: list[tuple[float, float]] = []

    def arrive(at: float) -> None:
        while later and later[-1].ready <= at:
            one = later.pop()
            heappush(there, (one.due, -one.seconds))

    def send(since: float) -> None:
        nonlocal sent
        due, seconds = heappop(there)
        sent = max(sent, since) - seconds
        heappush(begun, (due, sent))

    def wait(until: float) -> None:
        nonlocal now, apart
        if until > now:
            apart -= min(apart, until - now)
            now = until

    for at, stream, seconds in sorted(parts):
        arrive(at)
        while there and there[0][0] <= at:
            send(now)
        while begun and begun[0][0] <= at:
            wait(heappop(begun)[1])
        if stream == Stream.COMPUTES_APART:
            apart += seconds
        elif stream == Stream.COMPUTES:
            since, now = now, now + seconds
            while there and sent < now:
                send(since)
        elif stream == Stream.WAITS:
            sent = max(sent, now) + seconds
            wait(sent)
        else:
            wait(sent)
    arrive(inf)
    return max(now + apart, max(now, sent) - sum(seconds for _, seconds in there))


def loop_around(graph: Graph, o: int) -> int:
    """The loop whose body an op is in; -1 for none."""
    # Not by values: a call may have neither operands nor results.
    at = graph.ops[o].parent
    while at >= 0 and graph.ops[at].name != _LOOP:
        at = graph.ops[at].parent
    return at
