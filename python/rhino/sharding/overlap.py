"""Which collectives computing can hide, and what a step then takes.

Owns the model of overlap that the search minimises and the prediction reports: one formula for both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from rhino.machine import Cluster
from rhino.program.data import Graph, Op, once
from rhino.program.operations import CONTRACTIONS, stablehlo
from rhino.sharding.problem import LayoutTransfer, Problem
from rhino.sharding.symmetry import Quotient, of_most
from rhino.xla import back_end

# Share of computing that parameter and gradient collectives can run beside: two thirds of a step are backward, whose
# dots are what XLA's scheduler has to place sums under, and gathers are beside those of both. Of all computing 0.62 and
# 0.65 hide some where a network is full (`python -m bench.overlap`). XLA: collectives-span-dots
WINDOW = 0.67
# The same in the bodies of loops, of a step that sums gradients in loops over layers. Of such a loop's computing 0.99
# and 1.0 hides some on 64 V100s; layers that wait for others have less room (`rhino.sharding.crowding`).
WINDOW_IN_LOOPS = 1.0
# Of collectives that computing outside of loops could hide, what XLA hides when it is asked to overlap: 0.92 and 0.97
# by the timelines of the same bench. Loops over layers know theirs (`rhino.sharding.hiding`).
WON = 0.95
_VIEWS = stablehlo("reshape transpose convert")
# Of the step's products, those that must still follow for a parameter's return, or a gradient's sum, to be beside them.
_ENOUGH = 0.05


class ComputeWindow(NamedTuple):
    """A part of a step whose computing can have collectives beside it.

    Attributes:
      share: of the computing, what can at most.
      won: of what could be hidden so, what is.
    """

    share: float = 0.0
    won: float = WON


def hidden_seconds(compute_s: float, hideable_s: float, window: ComputeWindow) -> float:
    """What is saved by overlap in a window."""
    return window.won * min(hideable_s, window.share * compute_s)


def stored_transfers(problem: Problem, quotient: Quotient) -> frozenset[int]:
    """Indices of the tied transfers that move parameters or gradients: nothing waits for them but the update.

    What a cache gets from activations has a donated argument in its cone too, but the step's answer waits for it.
    """
    persistent = persistent_classes(problem, quotient)
    waited = _waited(problem.graph)

    def moves(transfer: LayoutTransfer) -> bool:
        if transfer.kind == "return":
            return True
        end = transfer.sources[0] if transfer.kind == "use" else transfer.targets[0]
        stored = end.node in persistent or _reads_persistent(problem, quotient, transfer, persistent)
        return stored and not waited[transfer.value]

    return frozenset(transfer.index for transfer, _ in quotient.transfers if moves(transfer))


def hideable_transfers(problem: Problem, quotient: Quotient, cluster: Cluster) -> frozenset[int]:
    """Of `stored_transfers`, those that computing can hide: there is some after what they send is made."""
    if not back_end(cluster.device.xla_target).asynchronous:  # XLA: asynchronous-collectives
        return frozenset()
    made = {transfer.index for transfer, _ in quotient.transfers if transfer.kind != "use"}
    return stored_transfers(problem, quotient) - (made - _early(problem, quotient))


def beside_transfers(problem: Problem, quotient: Quotient, cluster: Cluster) -> frozenset[int]:
    """Indices of the tied transfers of activations' gradients that computing can hide.

    In the backward pass of a layer two products read the gradient of what the layer made. Nothing waits for the one
    that makes a parameter's, which can run while what the other makes is summed over devices.
    """
    if not back_end(cluster.device.xla_target).asynchronous:
        return frozenset()
    made = _made_beside(problem.graph)
    found = of_most(problem, quotient, "define", lambda transfer: transfer.value in made)
    return found - stored_transfers(problem, quotient)


@once
def _waited(graph: Graph) -> Sequence[bool]:
    """Per value, whether it comes from products, and a product that leads to the step's answer waits for it.

    The answer is the outputs that are not an argument's next value. What only the next trip of a loop reads, this one
    need not wait for.
    """
    kept = {graph.outputs[a.alias] for a in graph.arguments if a.alias >= 0}
    answers, read, made = ([False] * len(graph.values) for _ in range(3))
    for v in graph.outputs:
        answers[v] |= v not in kept
    edges = list(_edges(graph))
    for heavy, sources, targets in edges:
        if heavy or any(made[v] for v in sources):
            for v in targets:
                made[v] = True
    for heavy, sources, targets in reversed(edges):
        leads = any(answers[v] for v in targets)
        awaited = (leads and heavy) or any(read[v] for v in targets)
        for v in sources:
            answers[v] |= leads
            read[v] |= awaited
    return [m and r for m, r in zip(made, read, strict=True)]


def _early(problem: Problem, quotient: Quotient) -> frozenset[int]:
    """The tied sums and returns beside most of which there is still computing, of the step's products.

    In loops there always is: that of another trip.
    """
    graph = problem.graph
    after = [0.0] * (len(graph.ops) + 1)
    for op in reversed(graph.ops):
        after[op.index] = after[op.index + 1] + op.flops * op.trips
    least = _ENOUGH * after[0]
    made = _made_at(graph)

    def followed(transfer: LayoutTransfer) -> bool:
        return after[made[transfer.value]] > least

    return of_most(problem, quotient, "define", followed) | of_most(problem, quotient, "return", followed)


@once
def _made_beside(graph: Graph) -> AbstractSet[int]:
    """What products make beside others, at least half as large and of the same operand, that no product waits for."""
    leads = leads_to_products(graph)
    products = [op for op in graph.ops if op.name in CONTRACTIONS and op.results]
    last: dict[tuple[int, int], list[Op]] = {}
    for op in products:
        for v in op.operands if not leads[op.results[0]] else ():
            last.setdefault((op.parent, _source(graph, v)), []).append(op)

    def beside(op: Op, other: Op) -> bool:
        # What was there before an operation does not follow from it.
        before = all(graph.values[_source(graph, v)].producer < op.index for v in other.operands)
        return before and 2 * other.flops >= op.flops

    return {
        op.results[0]
        for op in products
        if leads[op.results[0]]
        and any(beside(op, other) for v in op.operands for other in last.get((op.parent, _source(graph, v)), ()))
    }


@once
def leads_to_products(graph: Graph) -> Sequence[bool]:
    """Per value, whether a product, or a kernel, follows from it in the step, be it in a later trip of a loop."""
    found = [False] * len(graph.values)
    edges = [*_edges(graph)]
    edges += [(False, (tie[3],), (tie[2],)) for op in graph.ops if op.name == "stablehlo.while" for tie in op.ties]
    changed = True
    while changed:
        changed = False
        for heavy, sources, targets in reversed(edges):
            if heavy or any(found[v] for v in targets):
                for v in sources:
                    changed = changed or not found[v]
                    found[v] = True
    return found


def is_product(op: Op) -> bool:
    """Whether an op is a product, or a kernel or manual computation, which are taken for such."""
    return op.name in CONTRACTIONS or op.kernel is not None or op.manual is not None


def _source(graph: Graph, v: int) -> int:
    """What a value is but for its shape, the order of its dimensions, and its type."""
    while (maker := graph.values[v].producer) >= 0 and graph.ops[maker].name in _VIEWS:
        v = graph.ops[maker].operands[0]
    return v


def _made_at(graph: Graph) -> list[int]:
    """Per value outside of loops, the op after the last of the products, or loops, that it is made of."""
    found = [0] * len(graph.values)
    for op in graph.ops:
        if op.parent < 0:
            computes = bool(op.flops) or any(o.flops for o in graph.ops[op.index : op.region_end])
            own = max(op.index + 1, op.region_end) if computes else 0
            at = max([own, *(found[v] for v in op.operands)])
            for v in op.results:
                found[v] = at
    return found


def _edges(graph: Graph) -> Iterator[tuple[bool, Sequence[int], Sequence[int]]]:
    """Which values follow from which, in program order: (by a product, sources, targets); ties one by one."""
    ends: dict[int, list[Op]] = {}
    for op in graph.ops:
        yield from _ends(ends.pop(op.index, []))
        if not op.ties:
            yield is_product(op), op.operands, op.results
        elif op.name == "stablehlo.while":
            for given, cond, body, _, _ in op.ties:
                yield False, (given,), (cond, body)
        if op.ties:
            # Inner regions end before outer ones.
            ends.setdefault(max(op.region_end, op.index + 1), []).insert(0, op)
    yield from _ends(ends.pop(len(graph.ops), []))


def _ends(ops: Sequence[Op]) -> Iterator[tuple[bool, Sequence[int], Sequence[int]]]:
    for op in ops:
        for tie in op.ties:
            yield False, tie[-2:-1] if op.name == "stablehlo.while" else tie[:-1], tie[-1:]


def persistent_classes(problem: Problem, quotient: Quotient) -> frozenset[int]:
    """Classes of cones with a donated argument: parameters and optimizer state, whose traffic can be hidden."""
    nodes = [problem.node_of[a.value] for a in problem.graph.arguments if a.alias >= 0]
    return frozenset(quotient.klass[n] for n in nodes if n >= 0)


def _reads_persistent(
    problem: Problem, quotient: Quotient, transfer: LayoutTransfer, persistent: frozenset[int]
) -> bool:
    """Whether a constraint already in the module, rather than the search, gathers a parameter."""
    op = problem.graph.ops[transfer.op]
    if not op.name.startswith("sdy.") or not op.operands:  # sdy.constant has none
        return False
    n = problem.node_of[op.operands[0]]
    return n >= 0 and quotient.klass[n] in persistent
