"""How long parts of sums wait, whole, until devices add them up.

Owns which gradients wait for each other: those that XLA reduces by one collective, which starts once the last of them
is made. `XLA: collectives-combined, gathers-combined, threshold-keeps-apart`. Chooses nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from rhino.program.memory import Lifetimes
from rhino.sharding.combining import become_one
from rhino.sharding.costs import Costs, States
from rhino.sharding.layout import shards
from rhino.sharding.problem import PARTIAL, End, LayoutTransfer

# (index of a transfer, node of one of its sources)
Waiting = tuple[int, int]


def waiting(
    costs: Costs, states: Sequence[States], life: Lifetimes, transfers: Iterable[LayoutTransfer]
) -> dict[Waiting, tuple[int, int]]:
    """From when to when partial results wait for their reduction; those that fuse into it are left out.

    Gradients become few large collectives, up to `BackEnd.combined_bytes` each: bytes of results, so that a scatter
    takes more of what waits. Other sums are read soon. What the states leave whole counts as if they did not, beside
    others of its kind: for rows of the search, whose plan may.

    Args:
      transfers: results of ops, in program order.
    """
    found: dict[Waiting, tuple[int, int]] = {}
    gradients: list[tuple[Hashable, float, float, tuple[Waiting, int, int]]] = []
    made = [(costs.problem.nodes[s.node].ops[0], t, s) for t in transfers for s in t.sources if _waits(costs, t, s)]
    for born, transfer, source in sorted(made, key=lambda one: one[0]):
        key = (transfer.index, source.node)
        until = max(born + 1, life.first_reads[transfer.value])
        if not costs.comm.reduce_scatter or transfer.trips > 1:
            found[key] = (born, born + 1)
        elif not is_gradient(costs, transfer):
            found[key] = (born, until)
        else:
            gradients.append((*_reduced(costs, states, transfer, source), (key, born, until)))
    for together in become_one(gradients):
        # It starts when the last of what it reduces is made.
        last = max(born for _, born, _ in together)
        for key, born, until in together:
            found[key] = (born, max(born + 1, min(last, until)))
    return found


def is_gradient(costs: Costs, transfer: LayoutTransfer) -> bool:
    """Whether a sum is one that XLA may combine with others: nothing in the step waits for it."""
    alone = transfer.trips > 1 or not costs.comm.reduce_scatter
    combined = costs.combines.get(costs.quotient.tied[transfer.index])
    return not alone and combined is not None and not combined.awaited


def _waits(costs: Costs, transfer: LayoutTransfer, source: End) -> bool:
    return costs.problem.nodes[source.node].kind == "op" and transfer.targets[0].node >= 0


def _reduced(
    costs: Costs, states: Sequence[States], transfer: LayoutTransfer, source: End
) -> tuple[Hashable, float, float]:
    """What tells collectives apart that are not combined, the bytes one of them results in, and how many may."""
    klass, value = costs.quotient.klass, costs.problem.graph.values[transfer.value]
    target = transfer.targets[0]
    made = costs.layout(source, states[klass[source.node]])
    steps = costs.transfer(transfer, made, costs.layout(target, states[klass[target.node]]))[1]
    if PARTIAL not in made or not steps:
        nbytes = value.nbytes / shards(made, costs.sizes, value.shape)
        return (value.dtype,), nbytes, costs.back_end.combined_bytes("all-reduce")
    step = steps[0]
    alike = value.dtype, step.kind, step.axes
    return alike, step.result_bytes(costs.sizes), costs.back_end.combined_bytes(step.kind)
