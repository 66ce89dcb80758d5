"""How much of what computing is to hide in loops has other collectives in its way.

XLA runs one collective at a time beside computing: in a loop over layers a sum of gradients is beside what is computed
between two collectives that computing waits for, at most. Owns that count, by which the search prefers one of plans
that are as fast otherwise, and the step from a plan to one of its mesh with less in the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rhino.sharding.costs import Costs, States
from rhino.sharding.descent import Descent, Setting, descend
from rhino.sharding.evaluate import Prediction, predict
from rhino.sharding.leaving import executions, late_seconds
from rhino.sharding.limit import Limit
from rhino.sharding.nesting import nest
from rhino.sharding.paid import paid

# Of a step, what computing must be to hide in loops for others to be in its way.
_MUCH = 0.05
# Of the collectives in the way of what a plan hides, those that another may have to be preferred.
CLEAR = 0.25
# How many times as dear such collectives are where a plan without them is looked for.
_DEARER = 1.5


def crowding(costs: Costs, states: Sequence[States], predicted: Prediction) -> int:
    """Collectives in loops, by their executions in one step, that computing waits for.

    0 if computing hides little there, or if there is not one of them to each trip in which it hides some.
    """
    least_s = _MUCH * predicted.step_time_s
    if predicted.hidden_s <= least_s or all(transfer.trips == 1 for transfer, _ in costs.quotient.transfers):
        return 0
    nesting, waits, most, hideable_s = nest(costs, states), 0, 0, 0.0
    for transfer, count in costs.quotient.transfers:
        for seconds, steps, source, target in paid(costs, transfer, states, nesting):
            trips = [n for _, n in executions(costs, transfer, source, target, steps) if n > 1]
            if trips and transfer.index in costs.hideable:
                late_s = late_seconds(costs, transfer, source, target, steps)
                hideable_s, most = hideable_s + count * (seconds - late_s), max(most, *trips)
            else:
                waits += count * sum(trips)
    for k, count in enumerate(costs.quotient.counts):
        waits += sum(count * trips * len(steps) for _, steps, trips in costs.losses(k, states[k]) if trips > 1)
    return waits if hideable_s > least_s and waits >= most else 0


def cleared(
    setting: Setting, limit: Limit, predicted: Prediction, plan: Descent, near: float
) -> tuple[Prediction, Descent]:
    """The plan, or one on its mesh that is as fast and has little in the way of what it hides.

    Args:
      plan: within the limit; `predicted` is of it.
      near: the share by which a plan may be slower and as fast.
    """
    costs = setting.costs
    waits = crowding(costs, plan.states, predicted)
    if not waits or setting.deadline.over():
        return predicted, plan
    dear = replace(setting, costs=costs.dearer(_DEARER), placed={})
    found = descend(dear, setting.orders[0], plan.states)
    if found is None or found.states == plan.states:
        return predicted, plan
    other = predict(costs, found.states, limit.life)
    slow = other.step_time_s > predicted.step_time_s * (1 + near)
    if slow or other.memory.peak_bytes > limit.nbytes or crowding(costs, found.states, other) > CLEAR * waits:
        return predicted, plan
    found = Descent(found.states, other.step_time_s, plan.bound, other.memory.peak_bytes)
    return other, found
