"""Plans for whose axes no nesting suits all neighbours: what the integer program cannot see it is told afterwards.

Owns that loop. The program prices a conversion as if the axes that share a dimension were nested as suits it; where
two neighbours need them nested differently parts are permuted, and a plan without that may be faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rhino.sharding.costs import Costs, States
from rhino.sharding.descent import Descent, Setting, descend, jointly
from rhino.sharding.evaluate import Prediction, predict
from rhino.sharding.limit import Limit, within
from rhino.sharding.nesting import nest, stacks
from rhino.sharding.paid import paid

_ROUNDS = 3


def conflicts(costs: Costs, states: Sequence[States]) -> dict[int, States]:
    """Classes several of whose axes share a dimension, and whose neighbours disagree on how to nest them: the worst.

    Returns: their states, by class.
    """
    nesting = nest(costs, states)
    lost_s: dict[int, float] = {}
    for transfer, count in costs.quotient.transfers:
        free_s = sum(seconds for seconds, *_ in paid(costs, transfer, states))
        seconds = count * (sum(seconds for seconds, *_ in paid(costs, transfer, states, nesting)) - free_s)
        if seconds > 0:
            for k in dict.fromkeys(end.node for end in (*transfer.sources, *transfer.targets)):
                if k >= 0 and stacks(states[k]):
                    lost_s[k] = lost_s.get(k, 0.0) + seconds
    worst_s = max(lost_s.values(), default=0.0)
    return {k: states[k] for k in sorted(lost_s) if lost_s[k] >= worst_s / 2}


def reconsider(
    setting: Setting, limit: Limit, plan: Descent, known: Sequence[States] | None, tolerance: float
) -> tuple[Prediction, Descent]:
    """The plan or, where it is slower than its program said, one without the states in conflict that is faster.

    Args:
      plan: within the limit.
      known: states of a plan within the limit, if there is one besides.
      tolerance: the share by which a plan may be slower than its program said.
    """
    current, predicted = plan, predict(setting.costs, plan.states, limit.life)
    best = predicted, plan
    for _ in range(_ROUNDS):
        # No layout in conflict makes what is crowded.
        told_s = predicted.step_time_s - predicted.crowded_s
        if told_s <= current.objective * (1 + tolerance) or current.objective > setting.cutoff:
            break
        banned = conflicts(setting.costs, current.states)
        if not banned:
            break
        setting = setting.without(banned)
        found = descend(setting, setting.orders[0], current.states)
        if found is None or found.objective >= best[0].step_time_s:
            break
        current = within(setting, limit, jointly(setting, found), known)
        if not current.fits:
            break
        predicted = predict(setting.costs, current.states, limit.life)
        if predicted.step_time_s < best[0].step_time_s:
            best = predicted, replace(current, bound=plan.bound)
    return best
