"""From a plan with collectives in the way of what it hides to one of its mesh that sends less."""

from __future__ import annotations

from dataclasses import replace

from scanned_layers import layers_of

from rhino.machine import Cluster
from rhino.sharding import Options
from rhino.sharding.clearing import cleared
from rhino.sharding.planner import MeshSearch
from rhino.sharding.time_model import TimeModel


def test_a_faster_plan_is_looked_for_on_the_same_mesh() -> None:
    search = MeshSearch(layers_of(64), TimeModel(Cluster.load("p3.16xlarge:2")), Options(mesh=(2, 8)))
    search.run()
    predicted, chosen = search.outcome.best
    setting, limit, plan = chosen.setting, search.limit, chosen.best
    assert predicted.crowded_s > 0
    # As if there were no room at all: the other plan is slower than this one.
    crowded = replace(predicted, crowded_s=1.0, room=(0.0, 0.0, 0.0))
    assert cleared(setting, limit, crowded, plan) == (crowded, plan)
    slow = replace(crowded, step_time_s=10.0)
    other, found = cleared(setting, limit, slow, plan)
    assert found.states != plan.states
    assert predicted.step_time_s < other.step_time_s == found.objective < slow.step_time_s
    assert other.comm_s + other.hidden_s < predicted.comm_s + predicted.hidden_s
    # With nothing in the way there is nothing to look for, and what does not fit is none.
    free = replace(slow, crowded_s=0.0)
    assert cleared(setting, limit, free, plan) == (free, plan)
    tight = replace(limit, nbytes=other.memory.peak_bytes - 1)
    assert cleared(setting, tight, slow, plan) == (slow, plan)
