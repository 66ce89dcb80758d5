"""What a chosen plan is predicted to do: seconds, collectives by kind, peak memory; exact sums over the whole program.

Owns the prediction that the user sees and that is judged against XLA. Chooses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from rhino.cost.collectives import ring_bytes
from rhino.cost.memory import Lifetimes, Memory, peak
from rhino.search.costs import Costs, States, paid
from rhino.search.layout import Layout, Step, shards
from rhino.search.problem import PARTIAL, REPLICATED, End, Transfer

# Share of compute behind which gradient and parameter collectives can hide: half a step is backward, whose dots are
# what XLA's latency-hiding scheduler has to place them under.
_OVERLAP = 0.5


@dataclass(frozen=True, slots=True)
class Prediction:
    """Per device and step. `comm_bytes` and `collectives` by kind; `comm_s` is what compute does not hide."""

    step_time_s: float
    compute_s: float
    comm_s: float
    hidden_s: float
    comm_bytes: dict[str, int]
    collectives: dict[str, int]
    memory: Memory


@dataclass(frozen=True, slots=True)
class Copy:
    """A value converted for some of its readers: (op index, operand position) pairs, in program order."""

    value: int
    layout: Layout
    readers: tuple[tuple[int, int], ...]


def predict(costs: Costs, states: Sequence[States], life: Lifetimes) -> Prediction:
    """Everything about one plan. `states` per class of the tied problem, one state per mesh axis each."""
    quotient = costs.quotient
    compute_s = comm_s = overlappable_s = 0.0
    comm_bytes: dict[str, float] = {}
    counts: dict[str, int] = {}

    def record(steps: Sequence[Step], times: int) -> None:
        for step in steps:
            n = prod(costs.sizes[a] for a in step.axes)
            kind = step.kind
            comm_bytes[kind] = comm_bytes.get(kind, 0.0) + times * ring_bytes(kind, n, step.nbytes)
            counts[kind] = counts.get(kind, 0) + times

    persistent = persistent_classes(costs)
    for k, count in enumerate(quotient.counts):
        lost = costs.losses(k, states[k])
        lost_s = sum(seconds * trips for seconds, _, trips in lost)
        compute_s += count * (costs.node(k, states[k]) - lost_s)
        comm_s += count * lost_s
        for _, steps, trips in lost:
            record(steps, count * trips)
    for transfer, count in quotient.transfers:
        for seconds, steps, _, _ in paid(costs, transfer, states):
            comm_s += count * seconds
            record(steps, count * transfer.trips)
            end = transfer.sources[0] if transfer.kind == "use" else transfer.targets[0]
            if end.node in persistent or _reads_persistent(costs, transfer, persistent):
                overlappable_s += count * seconds
    hidden_s = min(overlappable_s, _OVERLAP * compute_s)
    return Prediction(
        step_time_s=compute_s + comm_s - hidden_s,
        compute_s=compute_s,
        comm_s=comm_s - hidden_s,
        hidden_s=hidden_s,
        comm_bytes={kind: round(comm_bytes[kind]) for kind in sorted(comm_bytes)},
        collectives={kind: counts[kind] for kind in sorted(counts)},
        memory=memory(costs, states, life),
    )


def persistent_classes(costs: Costs) -> frozenset[int]:
    """Classes of cones with a donated argument: parameters and optimizer state, whose traffic can be hidden."""
    problem, quotient = costs.problem, costs.quotient
    nodes = [problem.node_of[a.value] for a in problem.graph.arguments if a.alias >= 0]
    return frozenset(quotient.klass[n] for n in nodes if n >= 0)


def _reads_persistent(costs: Costs, transfer: Transfer, persistent: frozenset[int]) -> bool:
    """Whether a constraint already in the module, rather than the search, gathers a parameter."""
    problem = costs.problem
    op = problem.graph.ops[transfer.op]
    if not op.name.startswith("sdy."):
        return False
    n = problem.node_of[op.operands[0]]
    return n >= 0 and costs.quotient.klass[n] in persistent


def local_bytes(costs: Costs, states: Sequence[States], v: int) -> int:
    """Bytes of a value on one device."""
    problem = costs.problem
    n = problem.node_of[v]
    nbytes = problem.graph.values[v].nbytes
    if n < 0:
        return nbytes // free_parts(costs, states, v)
    classes = problem.classes[v]
    parts = 1
    for s, size in zip(states[costs.quotient.klass[n]], costs.sizes, strict=True):
        if s > 0 and s - 1 in classes:
            parts *= size
    return nbytes // parts


def free_parts(costs: Costs, states: Sequence[States], v: int) -> int:
    """Parts of a value any layout suits: as its readers want it."""
    problem, klass = costs.problem, costs.quotient.klass
    parts = 1
    for end in problem.free_reads.get(v, ()):
        layout = costs.layout(end, states[klass[end.node]])
        parts = max(parts, shards(layout, costs.sizes))
    return parts


def copies(costs: Costs, states: Sequence[States]) -> Iterator[Copy]:
    """The converted copies that dots and other heavy ops read, over the whole program."""
    problem, klass = costs.problem, costs.quotient.klass
    for transfer in problem.transfers:
        if transfer.kind != "use":
            continue
        source = transfer.sources[0]
        start = costs.layout(source, states[klass[source.node]])
        readers: dict[Layout, list[tuple[int, int]]] = {}
        for target in transfer.targets:
            node = problem.nodes[target.node]
            end = costs.layout(target, states[klass[target.node]])
            if end != start and node.kind == "op":
                readers.setdefault(end, []).append((target.op, target.slot))
        for end, ops in readers.items():
            yield Copy(transfer.value, end, tuple(sorted(ops)))


def outputs(costs: Costs, states: Sequence[States]) -> Iterator[tuple[int, Layout]]:
    """Results (value, layout) that their op leaves in another layout than their cone keeps; reduced where partial."""
    problem, klass = costs.problem, costs.quotient.klass
    for transfer in problem.transfers:
        if transfer.kind != "define":
            continue
        for source in transfer.sources:
            n = problem.node_of[source.value]
            if n < 0:
                continue
            kept = tuple(problem.view(source.value)[s] for s in states[klass[n]])
            left = costs.layout(source, states[klass[source.node]])
            reduced = {d >= 0 for d, was in zip(kept, left, strict=True) if was == PARTIAL}
            # Some axes reduced and others scattered: XLA does both at once only if it is not told the step between.
            left = tuple(REPLICATED if d == PARTIAL else d for d in left)
            if left != kept and len(reduced) < 2:
                yield source.value, left


def memory(costs: Costs, states: Sequence[States], life: Lifetimes) -> Memory:
    """Peak memory of the plan on one device, from the liveness of the planned program."""
    problem, klass = costs.problem, costs.quotient.klass
    graph = problem.graph
    local = [0] * len(graph.values)
    for v, _, _ in life.intervals:
        local[v] = local_bytes(costs, states, v)
    for argument in graph.arguments:
        local[argument.value] = local_bytes(costs, states, argument.value)
    for v in graph.outputs:
        local[v] = local_bytes(costs, states, v)
    spans: list[tuple[int, int, int, int]] = []
    for copy in copies(costs, states):
        spans.append((copy.value, _split(costs, copy.value, copy.layout), copy.readers[0][0], copy.readers[-1][0]))
    for transfer in problem.transfers:
        if transfer.kind != "define" or transfer.targets[0].node < 0:
            continue
        for source in transfer.sources:
            layout = costs.layout(source, states[klass[source.node]])
            span = partial_span(costs, life, transfer, source)
            if PARTIAL in layout and span is not None:
                spans.append((transfer.value, _split(costs, transfer.value, layout), *span))
    return peak(graph, life, local, spans)


def partial_span(costs: Costs, life: Lifetimes, transfer: Transfer, source: End) -> tuple[int, int] | None:
    """From when to when a partial result waits, whole, for its reduction; None for those that fuse into it.

    XLA combines the reduce-scatters of gradients into few large ones, late: partial results live until they are read.
    """
    node = costs.problem.nodes[source.node]
    if node.kind != "op" or transfer.targets[0].node < 0:
        return None
    born = node.ops[0]
    waits = costs.comm.reduce_scatter and transfer.trips == 1
    return born, max(born + 1, life.first_reads[transfer.value]) if waits else born + 1


def _split(costs: Costs, v: int, layout: Layout) -> int:
    return costs.problem.graph.values[v].nbytes // shards(layout, costs.sizes)
