"""Which collectives computing can hide, and what a step then takes.

Owns the model of overlap that the search minimises and the prediction reports: one formula for both.
"""

from __future__ import annotations

from rhino.graph.data import Graph
from rhino.search.problem import Problem, Transfer
from rhino.search.symmetry import Quotient

# Share of computing that parameter and gradient collectives can run beside: half a step is backward, whose dots are
# what XLA's scheduler has to place them under.
WINDOW = 0.5
# Of a hidden collective, what is really won: it still takes memory bandwidth and a few cores from the dots beside it.
WON = 0.95


def hidden_seconds(compute_s: float, overlappable_s: float, window: float) -> float:
    """What a step saves by overlap: at most `window` of its computing has collectives beside it."""
    return WON * min(overlappable_s, window * compute_s)


def hideable_transfers(problem: Problem, quotient: Quotient) -> frozenset[int]:
    """Indices of the tied transfers that move parameters or gradients: nothing waits for them but the update.

    What a cache gets from activations has a donated argument in its cone too, but the step's answer waits for it.
    """
    persistent = persistent_classes(problem, quotient)
    waited = _waited(problem.graph)

    def moves(transfer: Transfer) -> bool:
        end = transfer.sources[0] if transfer.kind == "use" else transfer.targets[0]
        stored = end.node in persistent or _reads_persistent(problem, quotient, transfer, persistent)
        return stored and not waited[transfer.value]

    return frozenset(transfer.index for transfer, _ in quotient.transfers if moves(transfer))


def _waited(graph: Graph) -> list[bool]:
    """Per value, whether it comes from arithmetic, and arithmetic that leads to the step's answer waits for it.

    The answer is the outputs that are not an argument's next value. Values that are one buffer of a loop are one here.
    """
    buffer = list(range(len(graph.values)))
    for op in graph.ops:
        for tie in op.ties:
            for v in tie:
                buffer[v] = buffer[tie[0]]
    kept = {graph.outputs[a.alias] for a in graph.arguments if a.alias >= 0}
    answers, read, made = ([False] * len(buffer) for _ in range(3))
    for v in graph.outputs:
        answers[buffer[v]] |= v not in kept
    for op in graph.ops:
        arithmetic = op.flops > 0 or any([made[buffer[v]] for v in op.operands])
        for v in op.results:
            made[buffer[v]] |= arithmetic
    # One sweep: what the next trip of a loop reads, this one need not wait for.
    for op in reversed(graph.ops):
        leads = any([answers[buffer[v]] for v in op.results])
        awaited = (leads and op.flops > 0) or any([read[buffer[v]] for v in op.results])
        for v in op.operands:
            answers[buffer[v]] |= leads
            read[buffer[v]] |= awaited
    return [made[b] and read[b] for b in buffer]


def persistent_classes(problem: Problem, quotient: Quotient) -> frozenset[int]:
    """Classes of cones with a donated argument: parameters and optimizer state, whose traffic can be hidden."""
    nodes = [problem.node_of[a.value] for a in problem.graph.arguments if a.alias >= 0]
    return frozenset(quotient.klass[n] for n in nodes if n >= 0)


def _reads_persistent(problem: Problem, quotient: Quotient, transfer: Transfer, persistent: frozenset[int]) -> bool:
    """Whether a constraint already in the module, rather than the search, gathers a parameter."""
    op = problem.graph.ops[transfer.op]
    if not op.name.startswith("sdy.") or not op.operands:  # sdy.constant has none
        return False
    n = problem.node_of[op.operands[0]]
    return n >= 0 and quotient.klass[n] in persistent
