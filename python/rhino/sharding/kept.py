"""What a chosen plan keeps on a device: bytes of each value and copy, from when to when, and the most at one time.

Owns the plan's side of that; the sweep over the program is in `rhino.program.memory`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from rhino.program.memory import Lifetimes, Memory, peak
from rhino.program.turned import turned_round
from rhino.program.unwritten import maxima, unrounded
from rhino.sharding.converted import copies
from rhino.sharding.costs import Costs, States
from rhino.sharding.landing import lands_apart
from rhino.sharding.layout import Layout, shards
from rhino.sharding.problem import PARTIAL, LayoutTransfer
from rhino.sharding.returning import made_bytes, passing_bytes, returned
from rhino.sharding.sliced import sliced
from rhino.sharding.stacks import stacks
from rhino.sharding.symmetry import transfers_where
from rhino.sharding.uneven import share
from rhino.sharding.waiting import is_gradient, waiting


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
