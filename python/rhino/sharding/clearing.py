"""From a plan that hides little in loops, for collectives in the way, to one of its mesh that waits for fewer.

Owns that step. What a plan hides is in `rhino.sharding.crowding`, which the program that is solved does not know.
"""

from __future__ import annotations

from dataclasses import replace

from rhino.sharding.descent import Descent, Setting, descend
from rhino.sharding.evaluate import Prediction, predict
from rhino.sharding.limit import Limit

# Of a step, what must be hidden for nothing being in the way for another plan to be looked for.
_MUCH = 0.01
# How many times as dear collectives in loops that computing waits for are to the program that looks for it.
_DEARER = 1.5


def cleared(setting: Setting, limit: Limit, predicted: Prediction, plan: Descent) -> tuple[Prediction, Descent]:
    """The plan, or a faster one on its mesh.

    Args:
      plan: within the limit; `predicted` is of it.
    """
    if predicted.crowded_s <= _MUCH * predicted.step_time_s or setting.deadline.over():
        return predicted, plan
    dear = replace(setting, costs=setting.costs.dearer(_DEARER), placed={})
    found = descend(dear, setting.orders[0], plan.states)
    if found is None or found.states == plan.states:
        return predicted, plan
    other = predict(setting.costs, found.states, limit.life)
    if other.step_time_s >= predicted.step_time_s or other.memory.peak_bytes > limit.nbytes:
        return predicted, plan
    return other, Descent(found.states, other.step_time_s, plan.bound, other.memory.peak_bytes)
