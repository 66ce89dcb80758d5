"""What a search does not look for: improvements that are too small, and plans on meshes that are far behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hand_graphs import costs_of, seconds_of
from search_programs import adam_step, graph_of

from rhino.machine import Cluster
from rhino.machine.collectives import RingModel
from rhino.program import Graph
from rhino.sharding.descent import Descent, Setting, descend, jointly, start_from_nothing
from rhino.sharding.milp import Milp
from rhino.sharding.program import Solved

CLUSTER = Cluster.load("dgx-a100:2")


@pytest.fixture(scope="module")
def training() -> Graph:
    function, arguments = adam_step(2, 1024, 4096)
    return graph_of(function, *arguments, donate=(0,))


@pytest.fixture
def setting(training: Graph) -> Setting:
    costs = costs_of(training, RingModel(CLUSTER, (4, 4)), seconds_of(training, 1e-14))
    # Copies of hand-made graphs are not in seconds.
    return Setting(replace(costs, carving={}), {}, gap=3e-3, proved=0)


def test_a_descent_far_from_the_cutoff_ends_after_a_round(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[Sequence[int]] = []
    place = Setting.place
    monkeypatch.setattr(Setting, "place", lambda self, axes, *rest: turns.append(axes) or place(self, axes, *rest))
    start = [(0, 0)] * len(setting.costs.quotient.counts)
    whole = descend(setting, [1, 0], start)
    assert whole is not None
    assert len(turns) > 2
    turns.clear()
    assert descend(setting, [1, 0], start, cutoff=whole.objective) == whole
    turns.clear()
    left = descend(setting, [1, 0], start, cutoff=whole.objective / 2)
    assert turns == [(1,), (0,)]
    assert left is not None
    assert left.objective >= whole.objective


def test_all_axes_at_once_are_given_up_where_they_win_too_little(setting: Setting) -> None:
    first = start_from_nothing(setting)
    assert first is not None
    exact = jointly(replace(setting, proved=10**6), first)
    wide = replace(setting, gap=3 * (1 - 0.9 * exact.objective / first.objective))
    found = jointly(wide, first)
    assert found.states == first.states
    assert 0.9 * exact.objective <= found.bound <= exact.objective


def test_equal_programs_of_two_meshes_are_solved_once(training: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Milp] = []
    solve = Milp.solve
    monkeypatch.setattr(Milp, "solve", lambda self, *args: ran.append(self) or solve(self, *args))
    host = Cluster.load("dgx-h100:1")
    meshes = [(4, 2), (2, 4)]

    def search(shared: bool) -> tuple[list[Descent | None], int]:
        ran.clear()
        solved: Solved = {}
        costs = [costs_of(training, RingModel(host, mesh), seconds_of(training, 1e-14)) for mesh in meshes]
        found = [start_from_nothing(Setting(c, {}, solved=solved if shared else {})) for c in costs]
        return found, len(ran)

    together, few = search(shared=True)
    apart, many = search(shared=False)
    assert together == apart
    assert few < many
