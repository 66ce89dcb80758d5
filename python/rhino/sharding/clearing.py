"""From a plan that hides less than its program said, for collectives in the way, to one of its mesh that sends less.

Owns that step. What a plan hides is in `rhino.sharding.crowding`, which the program that is solved does not know.
"""

from __future__ import annotations

from dataclasses import replace

from rhino.sharding.descent import Descent, Setting, descend
from rhino.sharding.evaluate import Prediction, predict
from rhino.sharding.limit import Limit

# Of a step, what must be hidden for nothing being in the way for another plan to be looked for.
_MUCH = 0.01


def cleared(setting: Setting, limit: Limit, predicted: Prediction, plan: Descent) -> tuple[Prediction, Descent]:
    """The plan, or a faster one on its mesh, for a program that has room beside computing for no more than it hides.

    Args:
      plan: within the limit; `predicted` is of it.
    """
    if predicted.crowded_s <= _MUCH * predicted.step_time_s or setting.deadline.over():
        return predicted, plan
    costs = setting.costs
    hiding = costs.hiding.with_room(predicted.room)
    # What of activations is beside computing has but little to be beside, and the program that is solved has it all.
    alone = replace(costs, hiding=hiding, hideable=costs.hideable - costs.beside, beside=frozenset())
    narrow = replace(setting, costs=alone, placed={})
    found = descend(narrow, setting.orders[0], plan.states)
    if found is None or found.states == plan.states:
        return predicted, plan
    other = predict(costs, found.states, limit.life)
    if other.step_time_s >= predicted.step_time_s or other.memory.peak_bytes > limit.nbytes:
        return predicted, plan
    return other, Descent(found.states, other.step_time_s, plan.bound, other.memory.peak_bytes)
