"""Which collectives computing can hide, and what a step then takes.

Owns the model of overlap that the search minimises and the prediction reports: one formula for both.
"""

from __future__ import annotations

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
    """Indices of the tied transfers that move parameters or gradients: nothing waits for them but the update."""
    persistent = persistent_classes(problem, quotient)

    def moves(transfer: Transfer) -> bool:
        end = transfer.sources[0] if transfer.kind == "use" else transfer.targets[0]
        return end.node in persistent or _reads_persistent(problem, quotient, transfer, persistent)

    return frozenset(transfer.index for transfer, _ in quotient.transfers if moves(transfer))


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
