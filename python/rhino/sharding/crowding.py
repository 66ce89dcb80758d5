"""How much of what computing is to hide in loops has other collectives in its way.

XLA runs one collective at a time beside computing: in a loop over layers a sum of gradients is beside what is computed
between two collectives that computing waits for, at most. Owns that count, by which the search prefers one of plans
that are as fast otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

from rhino.sharding.costs import Costs, States
from rhino.sharding.evaluate import Prediction
from rhino.sharding.nesting import nest
from rhino.sharding.paid import paid

# Of a step, what computing must be to hide in loops for others to be in its way.
_MUCH = 0.05


def crowding(costs: Costs, states: Sequence[States], predicted: Prediction) -> int:
    """Collectives in loops, by their executions in one step, that computing waits for.

    0 if computing hides little there, or if there is not one of them to each trip in which it hides some.
    """
    least_s = _MUCH * predicted.step_time_s
    if predicted.hidden_s <= least_s:
        return 0
    nesting, waits, most, hideable_s = nest(costs, states), 0, 0, 0.0
    for transfer, count in costs.quotient.transfers:
        for seconds, steps, source, target in paid(costs, transfer, states, nesting):
            trips = costs.trips(transfer, source, target)
            if trips > 1 and transfer.index in costs.hideable:
                hideable_s, most = hideable_s + count * seconds, max(most, trips)
            elif trips > 1:
                waits += count * trips * len(steps)
    for k, count in enumerate(costs.quotient.counts):
        waits += sum(count * trips * len(steps) for _, steps, trips in costs.losses(k, states[k]) if trips > 1)
    return waits if hideable_s > least_s and waits >= most else 0
