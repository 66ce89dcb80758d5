"""How much of computing collectives can run beside, where the step often waits for others.

A normalisation by the statistics of the batch sums over all devices in the middle of a layer, and the layer waits.
Until then one collective of parameters or gradients can run, since collectives run one after another; what it takes
longer, the sum waits, and computing with it. Owns that share, as it is where plans split the batch; knows no layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from rhino.program.data import Graph, once
from rhino.sharding.combining import ALONE, Combined
from rhino.sharding.overlap import leads_to_products
from rhino.sharding.problem import LayoutTransfer, Problem, leading
from rhino.sharding.symmetry import Quotient
from rhino.xla import BackEnd

_KINDS = {"use": "all-gather", "define": "all-reduce", "return": "all-gather"}


def uninterrupted(
    problem: Problem, quotient: Quotient, combines: Mapping[int, Combined], stored: AbstractSet[int], back_end: BackEnd
) -> float:
    """Share of computing that collectives of parameters and gradients can run beside at most, by their number.

    With `A` of them, as XLA combines them, and `S` sums over the batch that products wait for, computing is in `S + 1`
    parts, and a collective that takes longer than one part runs beside one: `A / (S + 1)`.

    Args:
      combines: what each tied transfer is combined with (`rhino.sharding.combining`).
      stored: the tied transfers of parameters and gradients.
    """
    graph = problem.graph
    summed, awaited = batch_sums(graph), leads_to_products(graph)

    def starts(transfer: LayoutTransfer, count: int) -> float:
        nbytes = max(1, graph.values[transfer.value].nbytes)
        combined = combines.get(transfer.index, ALONE)
        most = back_end.combined_bytes(_KINDS[transfer.kind])
        return count * transfer.trips * combined.share(nbytes, most)

    sums = sum(
        starts(transfer, count)
        for transfer, count in quotient.transfers
        if transfer.kind == "define" and transfer.op in summed and awaited[transfer.value]
    )
    return sum(starts(*one) for one in quotient.transfers if one[0].index in stored) / (sums + 1)


@once
def batch_sums(graph: Graph) -> AbstractSet[int]:
    """The reductions over the batch's dimension of what is made of it."""
    along = {a.value: 0 for a in graph.arguments if a.role == "batch" and graph.values[a.value].shape}
    found = set()
    for op in graph.ops:
        for given, *carried in op.ties:
            if given in along:
                along.update((v, along[given]) for v in carried if graph.values[v].shape == graph.values[given].shape)
        rule = op.rule
        if rule is None:
            continue
        read = [leading(rule, rule.operands[k][along[v]]) for k, v in enumerate(op.operands) if v in along]
        factors = {f for f in read if f >= 0}
        for v, mapping in zip(op.results, rule.results, strict=True):
            at = [d for d, dim in enumerate(mapping) if leading(rule, dim) in factors]
            if at:
                along[v] = at[0]
        if op.name == "stablehlo.reduce" and not factors.isdisjoint(rule.reduction):
            found.add(op.index)
    return found
