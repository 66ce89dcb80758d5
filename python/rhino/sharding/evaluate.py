"""What a chosen plan is predicted to do: seconds, collectives by kind, peak memory; exact sums over the whole program.

Owns the prediction that the user sees and that is judged against XLA (docs/design/search.md, "The prediction"). Chooses
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from rhino.machine.collectives import ring_bytes
from rhino.program.data import Op
from rhino.program.memory import Lifetimes, Memory, peak
from rhino.program.turned import turned_round
from rhino.program.unwritten import maxima, unrounded
from rhino.sharding.carved import carved_seconds
from rhino.sharding.combining import ALONE, Combined
from rhino.sharding.costs import Costs, States
from rhino.sharding.landing import landings, lands_apart
from rhino.sharding.layout import Layout, Order, Placed, Route, RouteStep, shards
from rhino.sharding.nesting import nest
from rhino.sharding.overlap import hidden_seconds
from rhino.sharding.paid import paid
from rhino.sharding.problem import PARTIAL, REPLICATED, End, LayoutTransfer
from rhino.sharding.returning import made_bytes, passing_bytes, returned
from rhino.sharding.sliced import sliced
from rhino.sharding.stacks import stacks
from rhino.sharding.symmetry import transfers_where
from rhino.sharding.uneven import share
from rhino.sharding.waiting import is_gradient, waiting

# Ops that XLA partitions by where their result is, unless told otherwise. XLA: halos-exchanged
_CUTTING = ("stablehlo.slice", "stablehlo.pad", "stablehlo.concatenate", "stablehlo.reverse")


@dataclass(frozen=True, slots=True)
class Prediction:
    """Per device and step. `comm_bytes` and `collectives` by kind; `comm_s` is what compute does not hide.

    `host_s` is what the host takes to start it all; a step takes no less.
    """

    step_time_s: float
    compute_s: float
    comm_s: float
    hidden_s: float
    comm_bytes: dict[str, int]
    collectives: dict[str, int]
    host_s: float
    memory: Memory


@dataclass(frozen=True, slots=True)
class ConvertedCopy:
    """A value converted for some of its readers: (op index, operand position) pairs, in program order.

    `stops` are the layouts it goes through, one collective from one to the next; the last is what they read.
    """

    value: int
    layout: Layout
    stops: tuple[Placed, ...]
    readers: tuple[tuple[int, int], ...]


def predict(costs: Costs, states: Sequence[States], life: Lifetimes) -> Prediction:
    """Everything about one plan. `states` per class of the tied problem, one state per mesh axis each."""
    quotient = costs.quotient
    compute_s = comm_s = copied_s = starts = 0.0
    hiding = costs.hiding
    beside_s, hideable_s = ([0.0] * len(hiding.windows) for _ in range(2))
    comm_bytes: dict[str, float] = {}
    counts: dict[str, int] = {}
    nesting = nest(costs, states)

    def record(steps: Sequence[RouteStep], times: int, combined: Combined = ALONE) -> None:
        nonlocal starts
        for step in steps:
            n = prod(costs.sizes[a] for a in step.axes)
            kind = step.kind
            comm_bytes[kind] = comm_bytes.get(kind, 0.0) + times * ring_bytes(kind, n, step.nbytes)
            counts[kind] = counts.get(kind, 0) + times
            starts += times * combined.share(step.nbytes, costs.back_end.combined_bytes(kind))

    for k, count in enumerate(quotient.counts):
        lost = costs.losses(k, states[k])
        lost_s = sum(seconds * trips for seconds, _, trips in lost)
        computed_s = count * (costs.node(k, states[k]) - lost_s)
        compute_s += computed_s
        for window, part in enumerate(hiding.shares_of(k)):
            beside_s[window] += part * computed_s
        comm_s += count * lost_s
        for _, steps, trips in lost:
            record(steps, count * trips)
    for transfer, count in quotient.transfers:
        for seconds, steps, source, target in paid(costs, transfer, states, nesting):
            comm_s += count * seconds
            copied_s += count * carved_seconds(costs, transfer, source, target)
            record(steps, count * costs.trips(transfer, source, target), costs.combined(transfer))
            if transfer.index in costs.hideable:
                hideable_s[hiding.window_of(transfer.index)] += count * seconds
        copied_s += count * landings(costs, transfer, states)
    hidden_s = sum(map(hidden_seconds, beside_s, hideable_s, hiding.windows))
    compute_s += copied_s
    return Prediction(
        step_time_s=compute_s + comm_s - hidden_s,
        compute_s=compute_s,
        comm_s=comm_s - hidden_s,
        hidden_s=hidden_s,
        comm_bytes={kind: round(comm_bytes[kind]) for kind in sorted(comm_bytes)},
        collectives={kind: counts[kind] for kind in sorted(counts)},
        host_s=costs.starting[0] + starts * costs.starting[1],
        memory=memory(costs, states, life),
    )


def local_bytes(costs: Costs, states: Sequence[States], v: int) -> int:
    """Bytes of a value on one device, or on its host."""
    return share(costs.problem.graph.values[v].nbytes, _parts(costs, states, v))


def _parts(costs: Costs, states: Sequence[States], v: int) -> float:
    """Parts that a value is kept in."""
    problem = costs.problem
    n = problem.node_of[v]
    if n < 0:
        return free_parts(costs, states, v)
    return problem.nodes[n].parts(states[costs.quotient.klass[n]], costs.sizes, problem.classes[v])


def split_axes(costs: Costs, states: Sequence[States], v: int) -> tuple[bool, ...]:
    """Whether each mesh axis splits a value."""
    problem = costs.problem
    n = problem.node_of[v]
    if n < 0:
        return _free(costs, states, v)[0]
    classes = problem.classes[v]
    return tuple(s > 0 and s - 1 in classes for s in states[costs.quotient.klass[n]])


def free_parts(costs: Costs, states: Sequence[States], v: int) -> float:
    """Parts of a value any layout suits: as its readers want it."""
    return _free(costs, states, v)[1]


def _free(costs: Costs, states: Sequence[States], v: int) -> tuple[tuple[bool, ...], float]:
    """As `split_axes`, of a value any layout suits: that of the reader who wants the most parts, and these."""
    problem, klass, shape = costs.problem, costs.quotient.klass, costs.problem.graph.values[v].shape
    found: tuple[bool, ...] = (False,) * len(costs.sizes)
    parts: float = 1
    for end in problem.free_reads.get(v, ()):
        layout = costs.layout(end, states[klass[end.node]])
        wanted = shards(layout, costs.sizes, shape)
        if wanted > parts:
            found, parts = tuple(state >= 0 for state in layout), wanted
    return found, parts


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


def memory(costs: Costs, states: Sequence[States], life: Lifetimes) -> Memory:
    """Peak memory of the plan on one device, from the liveness of the planned program."""
    # A search asks several times for the plan that it is busy with.
    asked = tuple(states)
    if costs.used is None or costs.used[0] is not life or costs.used[1] != asked:
        costs.used = life, asked, _memory(costs, asked, life)
    return costs.used[2]


def _memory(costs: Costs, states: Sequence[States], life: Lifetimes) -> Memory:
    local, held = spans(costs, states, life)
    kept = stacks(costs, states, partial(local_bytes, costs, states))
    held.extend((v, local_bytes(costs, states, v), first, last) for v, first, last in kept)
    given_up = sliced(costs, states, life)
    held.extend((v, _split(costs, v, layout), first, last) for v, layout, first, last in given_up.parts)
    graph = costs.problem.graph
    found = peak(graph, life, local, held, shorter(costs, states, life, given_up.ends))
    hosted = (a.value for a in graph.arguments if a.value in graph.hosted)
    return replace(found, host_bytes=sum(local_bytes(costs, states, v) for v in hosted)) if graph.hosted else found


def shorter(
    costs: Costs, states: Sequence[States], life: Lifetimes, ends: Mapping[int, int]
) -> dict[int, tuple[int, int]]:
    """From when to when a device keeps a value, where the plan makes that shorter than its lifetime.

    A sum that waits for its all-reduce is there as a partial result until then: `XLA: collectives-combined`.

    Args:
      ends: the last op that needs all of a value, of those that are sliced earlier (`Sliced.ends`).
    """
    klass = costs.quotient.klass
    first_last = {v: (first, ends.get(v, last)) for v, first, last in life.intervals}
    found = {v: first_last[v] for v in ends}
    found |= dict.fromkeys(_unwritten(costs), (0, -1))
    summed = _summed(costs, states)
    waits = waiting(costs, states, life, summed)
    for transfer in summed:
        if transfer.value not in first_last:
            continue
        first, last = first_last[transfer.value]
        kept = costs.layout(transfer.targets[0], states[klass[transfer.targets[0].node]])
        for source in transfer.sources:
            layout = costs.layout(source, states[klass[source.node]])
            span = waits.get((transfer.index, source.node))
            if PARTIAL not in layout or span is None:
                continue
            if span[1] == span[0] + 1 and not is_gradient(costs, transfer):
                continue
            # An all-reduce works in place. Scattered sums are there early, beside those that wait.
            if _split(costs, transfer.value, layout) == _split(costs, transfer.value, kept):
                found[transfer.value] = (max(first, span[1] + 1), last)
    return found


def _unwritten(costs: Costs) -> Iterator[int]:
    """Values that a back end does not make, though others would."""
    graph = costs.problem.graph
    if costs.back_end.kernels_turned:
        # The gradient of a convolution's input takes the copy of the kernel that the convolution reads.
        yield from turned_round(graph)
    if costs.back_end.dots_widened:
        yield from unrounded(graph)
    if costs.back_end.maxima_fused:
        yield from maxima(graph)


def spans(costs: Costs, states: Sequence[States], life: Lifetimes) -> tuple[list[int], list[tuple[int, int, int, int]]]:
    """What a plan holds on one device: bytes of each value that is kept, and copies as (value, bytes, first, last)."""
    problem, klass = costs.problem, costs.quotient.klass
    graph = problem.graph
    local = [0] * len(graph.values)
    parts: dict[tuple[int, tuple[int, ...]], float] = {}
    kept = (*(v for v, _, _ in life.intervals), *(a.value for a in graph.arguments), *graph.outputs)
    for v in kept:
        if v in graph.hosted:
            continue
        n = problem.node_of[v]
        key = (klass[n], problem.classes[v]) if n >= 0 else (-1, (v,))
        if key not in parts:
            parts[key] = _parts(costs, states, v)
        local[v] = share(graph.values[v].nbytes, parts[key])
    held: list[tuple[int, int, int, int]] = []
    # How axes are nested changes no sizes.
    for copy in copies(costs, states, [tuple(range(len(costs.sizes)))] * len(states)):
        if graph.ops[copy.readers[-1][0]].name.startswith("sdy."):
            continue  # a constraint's result is the copy
        nbytes = _split(costs, copy.value, copy.layout)
        held.append((copy.value, nbytes, copy.readers[0][0], copy.readers[-1][0]))
        # What is read as it is kept, and was never rounded, is float32 already.
        is_widened = copy.value not in unrounded(graph) or nbytes != local[copy.value]
        if copy.value in costs.wide(life) and is_widened:
            held.extend((copy.value, 2 * nbytes, op, op) for op in dict.fromkeys(op for op, _ in copy.readers))
    for transfer, made, returned_so in returned(costs, states):
        v = transfer.value
        local[v] = _split(costs, v, returned_so)
        if made != returned_so:
            held.append((v, made_bytes(costs, v, made, returned_so), transfer.op, len(graph.ops)))
            held.append((v, passing_bytes(costs, v, made, returned_so), transfer.op, transfer.op))
    summed = _summed(costs, states)
    waits = waiting(costs, states, life, summed)
    for transfer in summed:
        target = transfer.targets[0]
        for source in transfer.sources:
            k = klass[source.node]
            layout = costs.layout(source, states[k])
            span = waits.get((transfer.index, source.node))
            if PARTIAL in layout and span is not None:
                held.append((transfer.value, _split(costs, transfer.value, layout), *span))
            elif lands_apart(costs, k, layout, costs.layout(target, states[klass[target.node]])):
                held.append((transfer.value, _split(costs, transfer.value, layout), source.op, source.op + 1))
    for extra in costs.scratch(life):
        held_in = problem.nodes[extra.node].parts(states[klass[extra.node]], costs.sizes, extra.classes)
        nbytes = share(extra.nbytes, held_in)
        held.append((extra.value, nbytes, extra.first, extra.last))
    return local, held


def _summed(costs: Costs, states: Sequence[States]) -> list[LayoutTransfer]:
    """Transfers of results one of which a plan leaves as parts of a sum, or writes apart; what none reads left out."""

    def leaves(tied: LayoutTransfer) -> bool:
        (target,) = tied.targets
        if target.node < 0:
            return False
        kept = costs.layout(target, states[target.node])
        made = [(source.node, costs.layout(source, states[source.node])) for source in tied.sources]
        return any(PARTIAL in layout or lands_apart(costs, k, layout, kept) for k, layout in made)

    return transfers_where(costs.problem, costs.quotient, "define", leaves)


def _split(costs: Costs, v: int, layout: Layout) -> int:
    value = costs.problem.graph.values[v]
    return share(value.nbytes, shards(layout, costs.sizes, value.shape))
