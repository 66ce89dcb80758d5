"""One decision at a time takes the choice that is best with the others as they are: its cost falls, quickly.

It must not know bounds or programs (docs/design/solver.md, "Descent").
"""

from __future__ import annotations

import numpy as np

from rhino.deadline import Deadline
from rhino.solver.model import Index, Model
from rhino.solver.problem import Numbers

_SWEEPS = 20


def descend(model: Model, choices: Index, penalty: float, deadline: Deadline) -> Index:
    """An answer that costs the same or less, memory above the room counted at `penalty` per byte and slot."""
    choices = choices.copy()
    left = model.room - model.profile(choices)
    for _ in range(_SWEEPS):
        moved = False
        for node, costs in enumerate(model.costs):
            if node % 64 == 0 and deadline.over():
                return choices
            total = costs.copy()
            for number in model.neighbours[node]:
                pair = model.pairs[number]
                if pair.left == node:
                    total += pair.costs[:, pair.columns[choices[pair.right]]][pair.rows]
                else:
                    total += pair.costs[pair.rows[choices[pair.left]]][pair.columns]
            best = _move(model, node, int(choices[node]), total, left, penalty)
            if best != choices[node]:
                choices[node], moved = best, True
        if not moved:
            break
    return choices


def _move(model: Model, node: int, now: int, total: Numbers, left: Numbers, penalty: float) -> int:
    """The best choice of a decision; `left`, the room that is left, is changed to what it leaves."""
    uses = model.uses_of[node]
    begin = min((int(model.first[use]) for use in uses), default=0)
    end = max((int(model.last[use]) for use in uses), default=0)
    without = left[begin:end].copy()
    for use in uses:
        without[model.first[use] - begin : model.last[use] - begin] += model.usages[use][now]

    def after(choice: int) -> Numbers:
        rest = without.copy()
        for use in uses:
            rest[model.first[use] - begin : model.last[use] - begin] -= model.usages[use][choice]
        return rest

    def excess(rest: Numbers) -> float:
        return -float(np.minimum(rest + model.tolerance, 0.0).sum())

    have = excess(left[begin:end]) if len(without) else 0.0
    value, best, best_left = total[now] + penalty * have, now, None
    for choice in np.argsort(total, kind="stable").tolist():
        if total[choice] >= value:
            break  # what follows costs more even if it takes no memory above the room
        rest = after(choice)
        spent = total[choice] + penalty * excess(rest)
        if spent < value and (value == np.inf or value - spent > 1e-12 * value):
            value, best, best_left = spent, choice, rest
    if best_left is not None:
        left[begin:end] = best_left
    return best
