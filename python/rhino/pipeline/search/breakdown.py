"""What every op of a sharded program costs: the terms of `rhino.sharding.evaluate.predict`, op by op.

Owns how compute and collectives are told to the ops that cause them, so that they can be summed by stage and phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from rhino.machine.collectives import ring_bytes
from rhino.sharding.carved import carved_seconds
from rhino.sharding.costs import Costs, States
from rhino.sharding.landing import landings
from rhino.sharding.layout import RouteStep
from rhino.sharding.leaving import executions, late_seconds
from rhino.sharding.nesting import nest
from rhino.sharding.paid import paid
from rhino.sharding.problem import LayoutTransfer


@dataclass(frozen=True, slots=True)
class OpSeconds:
    """Seconds in one step on one device, by op index; their sum over all ops is what `predict` sums.

    Attributes:
      compute: computing.
      comm: collectives that nothing hides.
      hideable: collectives that may run beside computing, most of them of parameters and gradients.
      beside: of `hideable`, those of activations.
      late: of `hideable` and `comm`, sums that wait for the end of the micro-batch loop: they run once a step.
    """

    compute: list[float]
    comm: list[float]
    hideable: list[float]
    beside: list[float]
    late: list[float]


def op_breakdown(costs: Costs, states: Sequence[States]) -> OpSeconds:
    """The seconds of each op under the states of a plan. Time is linear in ops, transfers and their ends."""
    problem, quotient = costs.problem, costs.quotient
    count = len(problem.graph.ops)
    found = OpSeconds(*([0.0] * count for _ in range(5)))
    _computing(costs, states, found)
    _collectives(costs, states, found, quotient.tied)
    return found


def _computing(costs: Costs, states: Sequence[States], found: OpSeconds) -> None:
    problem, klass, sizes = costs.problem, costs.quotient.klass, costs.sizes
    graph = problem.graph
    shards: dict[tuple[int, frozenset[int]], float] = {}
    for node in problem.nodes:
        k = klass[node.index]
        given = states[k]
        if node.kind == "op":
            found.compute[node.ops[0]], found.comm[node.ops[0]] = costs.node_parts(k, given)
            continue
        for o in node.ops:
            key = (k, costs.dividing(node.index, o))
            if key not in shards:
                shards[key] = node.parts(given, sizes, key[1])
            found.compute[o] = costs.seconds[o] / shards[key] + costs.launches[o]
        for v, o, source, target in costs.lost(node.index, given):
            found.comm[o] += costs.convert(v, source, target)[0] * graph.ops[o].trips


def _collectives(costs: Costs, states: Sequence[States], found: OpSeconds, tied: Sequence[int]) -> None:
    nesting = nest(costs, states)
    seconds: dict[int, tuple[float, float]] = {}
    copied: dict[int, float] = {}
    for transfer, _ in costs.quotient.transfers:
        now = late = 0.0
        copies_s = landings(costs, transfer, states)
        for paid_s, steps, source, target in paid(costs, transfer, states, nesting):
            copies_s += carved_seconds(costs, transfer, source, target)
            late_s = late_seconds(costs, transfer, source, target, steps)
            now, late = now + paid_s - late_s, late + late_s
        seconds[transfer.index] = now, late
        copied[transfer.index] = copies_s
    for transfer in costs.problem.transfers:
        now, late = seconds[tied[transfer.index]]
        found.compute[transfer.op] += copied[tied[transfer.index]]
        if now or late:
            op = _place(transfer)
            kind = found.hideable if tied[transfer.index] in costs.hideable else found.comm
            kind[op] += now + late
            if tied[transfer.index] in costs.beside:
                found.beside[op] += now + late
            found.late[op] += late


Traffic = dict[str, tuple[float, int]]


def stage_traffic(costs: Costs, states: Sequence[States], stage_of_op: Sequence[int], stages: int) -> list[Traffic]:
    """Per stage and kind of collective, the bytes a device sends in all executions of its ops, and how many those are.

    Ring formulas, as in `rhino.sharding.evaluate.predict`, of which this is the part of each stage.
    """
    problem, quotient = costs.problem, costs.quotient
    nesting = nest(costs, states)
    found: list[Traffic] = [{} for _ in range(stages)]

    def record(op: int, steps: Sequence[RouteStep], times: int) -> None:
        s = stage_of_op[op] if op >= 0 else -1
        for step in steps if s >= 0 else ():
            sent = ring_bytes(step.kind, prod(costs.sizes[a] for a in step.axes), step.nbytes)
            nbytes, count = found[s].get(step.kind, (0.0, 0))
            found[s][step.kind] = nbytes + times * sent, count + times

    for node in problem.nodes:
        k = quotient.klass[node.index]
        if node.kind == "op":
            for _, steps, times in costs.losses(k, states[k]):
                record(node.ops[0], steps, times)
        else:
            for v, o, source, target in costs.lost(node.index, states[k]):
                record(o, costs.convert(v, source, target)[1], problem.graph.ops[o].trips)
    made = {
        transfer.index: [
            ((step,), times)
            for _, steps, source, target in paid(costs, transfer, states, nesting)
            for step, times in executions(costs, transfer, source, target, steps)
        ]
        for transfer, _ in quotient.transfers
    }
    for transfer in problem.transfers:
        for steps, times in made[quotient.tied[transfer.index]]:
            record(_place(transfer), steps, times)
    return found


def _place(transfer: LayoutTransfer) -> int:
    """The op at which a transfer happens: a value is converted where it is first read, a sum where it is made."""
    if transfer.kind == "use":
        return min((t.op for t in transfer.targets if t.op >= 0), default=transfer.op)
    return transfer.op
