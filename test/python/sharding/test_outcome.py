"""Which meshes of three axes follow from what was found, and which plan is the best."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from search_programs import adam_step, graph_of, host

from rhino.program import Graph
from rhino.program.memory import lifetimes
from rhino.sharding import Options
from rhino.sharding.descent import Descent
from rhino.sharding.evaluate import predict
from rhino.sharding.levels import LEVELS
from rhino.sharding.meshes import named
from rhino.sharding.outcome import MeshCandidate, Outcome
from rhino.sharding.planner import MeshSearch
from rhino.sharding.time_model import TimeModel


@pytest.fixture(scope="module")
def training() -> Graph:
    step, arguments = adam_step(2, 64, 32)
    return graph_of(step, *arguments, donate=(0,))


def ranked(graph: Graph, *meshes: tuple[int, ...]) -> Outcome:
    """The plan that replicates everything, on each mesh, the first called the fastest."""
    search = MeshSearch(graph, TimeModel(host(16)), Options(), lambda done, total, label: None)
    outcome = Outcome()
    for i, shape in enumerate(meshes):
        setting = search._setting(named(shape), LEVELS["O1"].effort)
        states = tuple((0,) * len(shape) for _ in setting.costs.quotient.counts)
        predicted = predict(setting.costs, states, lifetimes(graph))
        candidate = MeshCandidate(setting, Descent(states, predicted.step_time_s))
        outcome.met[named(shape)] = candidate
        outcome.rank(replace(predicted, step_time_s=1.0 + i), candidate)
    return outcome


def test_a_third_axis_splits_one_of_the_best_two(training: Graph) -> None:
    refined = dict(ranked(training, (4, 4), (8, 2)).refined())
    assert list(refined) == [named((2, 2, 4)), named((4, 2, 2))]
    # Both halves of the axis do what it did.
    assert all(len(states) == 3 for start in refined.values() for states in start)


def test_the_best_two_axes_are_tried_with_more_devices_inside(training: Graph) -> None:
    assert ranked(training, (4, 4), (8, 2)).wider() == named((2, 8))
    # The smallest factor moves.
    assert ranked(training, (8, 2)).wider() == named((4, 4))
    assert ranked(training, (16,)).wider() is None
    # What was tried is not tried again, and an axis of one device is none.
    assert ranked(training, (8, 2), (4, 4)).wider() is None
    assert ranked(training, (2, 8)).wider() is None


def test_other_orders_of_the_best_three_axes_keep_the_inner_one_in_a_host(training: Graph) -> None:
    outcome = ranked(training, (8, 2), (4, 2, 2), (2, 2, 4))
    assert {shape for shape, _ in outcome.permuted(2)} == {named((2, 4, 2))}
    outcome = ranked(training, (2, 4, 2))
    met = set(outcome.met)
    assert {shape for shape, _ in outcome.permuted(16)} == set(map(named, permutations((2, 4, 2)))) - met


def test_states_follow_their_axes(training: Graph) -> None:
    outcome = ranked(training, (4, 2, 2))
    ((predicted, candidate),) = outcome.ranked.values()
    states = tuple((1, 0, 2) for _ in candidate.best.states)
    outcome.ranked = {candidate.name: (predicted, replace(candidate, best=replace(candidate.best, states=states)))}
    found = dict(outcome.permuted(16))
    assert found[named((2, 4, 2))] in ([(0, 1, 2)] * len(states), [(2, 1, 0)] * len(states))
    assert found[named((2, 2, 4))] in ([(0, 2, 1)] * len(states), [(2, 0, 1)] * len(states))


def test_of_equally_fast_plans_the_one_with_fewer_axes_is_best(training: Graph) -> None:
    outcome = ranked(training, (2, 2, 4), (4, 4))
    outcome.same = 0.5
    assert outcome.best[1].setting.costs.sizes == (2, 2, 4)
    outcome.same = 1.0
    assert outcome.best[1].setting.costs.sizes == (4, 4)
