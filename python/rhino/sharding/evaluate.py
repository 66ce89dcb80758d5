"""What a chosen plan is predicted to do: seconds, collectives by kind, peak memory; exact sums over the whole program.

Owns the prediction that the user sees and that is judged against XLA (docs/design/search.md, "The prediction"). Chooses
nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, prod

from rhino.machine.collectives import ring_bytes
from rhino.program.memory import Lifetimes, Memory
from rhino.sharding.carved import carved_seconds
from rhino.sharding.combining import ALONE, Combined
from rhino.sharding.costs import Costs, States
from rhino.sharding.crowding import hidden_in_trips
from rhino.sharding.kept import memory
from rhino.sharding.landing import landings
from rhino.sharding.layout import RouteStep
from rhino.sharding.leaving import executions, late_seconds
from rhino.sharding.nesting import nest
from rhino.sharding.outermost import turned_seconds
from rhino.sharding.overlap import hidden_seconds
from rhino.sharding.paid import paid


@dataclass(frozen=True, slots=True)
class Prediction:
    """Per device and step. `comm_bytes` and `collectives` by kind; `comm_s` is what compute does not hide.

    `host_s` is what the host takes to start it all; a step takes no less. `crowded_s` is what of `comm_s` compute would
    hide if no other collective were in the way (`rhino.sharding.crowding`), and `room`, by window
    (`rhino.sharding.hiding`), the share of computing that can have collectives beside it as they are.
    """

    step_time_s: float
    compute_s: float
    comm_s: float
    hidden_s: float
    comm_bytes: dict[str, int]
    collectives: dict[str, int]
    host_s: float
    memory: Memory
    crowded_s: float = 0.0
    room: tuple[float, ...] = ()


def predict(costs: Costs, states: Sequence[States], life: Lifetimes) -> Prediction:
    """Everything about one plan. `states` per class of the tied problem, one state per mesh axis each."""
    quotient = costs.quotient
    compute_s = comm_s = copied_s = starts = 0.0
    hiding = costs.hiding
    beside_s, hideable_s = ([0.0] * len(hiding.windows) for _ in range(2))
    comm_bytes: dict[str, float] = {}
    counts: dict[str, int] = {}
    nesting = nest(costs, states)
    in_trips: dict[int, list[tuple[RouteStep, float]]] = defaultdict(list)

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
            copied_s += count * turned_seconds(costs, transfer, source, target)
            copied_s += count * carved_seconds(costs, transfer, source, target)
            for step, times in executions(costs, transfer, source, target, steps):
                record((step,), count * times, costs.combined(transfer))
                if hiding.trips and times == transfer.trips:
                    in_trips[transfer.index].append((step, costs.step_seconds(step, costs.combined(transfer))))
            if transfer.index in costs.hideable:
                late_s = late_seconds(costs, transfer, source, target, steps)
                hideable_s[hiding.window_of(transfer.index)] += count * (seconds - late_s)
        copied_s += count * landings(costs, transfer, states)
    crowded_s = hidden_s = 0.0
    room = []
    could_s = hidden_in_trips(costs, states, in_trips)
    for window, (beside, hideable, one) in enumerate(zip(beside_s, hideable_s, hiding.windows, strict=True)):
        free_s = hidden_seconds(beside, hideable, one)
        hidden = min(free_s, one.won * could_s.get(window, inf))
        hidden_s, crowded_s = hidden_s + hidden, crowded_s + free_s - hidden
        room.append(hidden / (one.won * beside) if hidden < free_s else one.share)
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
        crowded_s=crowded_s,
        room=tuple(room),
    )
