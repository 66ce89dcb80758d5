"""Plans for whose axes no nesting suits all neighbours: found, and replaced by faster ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from search_programs import adam_step, module_of

from rhino.ir.import_graph import import_graph
from rhino.machine import Cluster
from rhino.machine.model import Efficiency
from rhino.program import Graph
from rhino.program.memory import lifetimes
from rhino.sharding import descent
from rhino.sharding.cones import build_problem
from rhino.sharding.conflicts import conflicts, reconsider
from rhino.sharding.costs import Costs
from rhino.sharding.descent import Descent, Setting, jointly, start_from_nothing
from rhino.sharding.evaluate import predict
from rhino.sharding.limit import Limit, within
from rhino.sharding.nesting import stacks
from rhino.sharding.program import AxisProgram
from rhino.sharding.symmetry import tie_repeats
from rhino.sharding.time_model import ProgramTimes, TimeModel

# With products this fast, and sums of activations all waited for, layouts of parameters that conflict look worth it.
CLUSTER = replace(Cluster.load("dgx-a100:2"), efficiency=Efficiency(matmul=0.95, memory=0.9))
PLENTY = 1 << 50


@pytest.fixture(scope="module")
def training() -> Graph:
    function, arguments = adam_step(3, 22528, 32768)
    return import_graph(module_of(function, *arguments, donate=(0,), roles=True))


def setting_on(graph: Graph, shape: tuple[int, ...]) -> Setting:
    problem = build_problem(graph)
    quotient = tie_repeats(problem)
    times = ProgramTimes.of(problem, quotient, TimeModel(CLUSTER))
    # What is in the way of what computing hides is no conflict.
    hiding = replace(times.hiding, trips=())
    times = replace(times, hideable=times.hideable - times.beside, beside=frozenset(), hiding=hiding)
    return Setting(Costs.on(times, shape), {})


def best(setting: Setting, limit: Limit) -> Descent:
    first = start_from_nothing(setting)
    assert first is not None
    return within(setting, limit, jointly(setting, first))


def test_a_plan_slower_than_its_program_said_is_replaced(training: Graph) -> None:
    setting, limit = setting_on(training, (4, 4)), Limit(PLENTY, lifetimes(training))
    plan = best(setting, limit)
    before = predict(setting.costs, plan.states, limit.life)
    assert before.step_time_s > plan.objective * 1.01
    after, found = reconsider(setting, limit, plan, None, 1e-2)
    assert after.step_time_s < before.step_time_s
    assert after == predict(setting.costs, found.states, limit.life)
    # What was told to the program on the way: one class, in the states it had, all on one dimension or two.
    banned = conflicts(setting.costs, plan.states)
    assert banned
    assert all(states == plan.states[k] and stacks(states) for k, states in banned.items())
    assert all(found.states[k] != states for k, states in banned.items())


def test_a_plan_as_fast_as_its_program_said_stays(training: Graph) -> None:
    setting, limit = setting_on(training, (16,)), Limit(PLENTY, lifetimes(training))
    plan = best(setting, limit)
    assert conflicts(setting.costs, plan.states) == {}
    assert reconsider(setting, limit, plan, None, 0.0)[1] is plan


def test_banned_states_are_not_taken(training: Graph) -> None:
    setting = setting_on(training, (16,))
    first = start_from_nothing(setting)
    assert first is not None
    k = next(k for k, states in enumerate(first.states) if states[0] > 0)
    second = start_from_nothing(setting.without({k: first.states[k]}))
    assert second is not None
    assert second.states[k] != first.states[k]
    assert second.objective >= first.objective


def test_a_mesh_with_too_many_pairs_on_one_axis_is_not_counted_on_both(
    training: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = replace(setting_on(training, (4, 4)), largest=10)
    first = start_from_nothing(setting)
    assert first is not None
    built: list[int] = []
    monkeypatch.setattr(descent, "AxisProgram", lambda *_: built.append(1))
    assert jointly(setting, first) == first
    assert not built


def test_what_is_too_large_to_be_solved_is_not_priced(training: Graph) -> None:
    setting = setting_on(training, (4, 4))
    first = start_from_nothing(setting)
    assert first is not None
    alone = max(setting.known_size)
    setting = replace(setting_on(training, (4, 4)), largest=alone)
    assert jointly(setting, first) == first
    assert max(setting.known_size) > alone
    assert not setting.costs.parts
    assert not setting.costs.prices


def test_pairs_that_cost_nothing_have_no_variables(training: Graph) -> None:
    setting = setting_on(training, (4, 4))
    blank = (0,) * 2
    program = AxisProgram(setting.costs, (0,), [blank] * len(setting.costs.quotient.counts), {})
    program.build()
    states = sum(map(len, program.x))
    # Half of all pairs of states cost nothing: a layout that both sides have, and a slice of what is whole.
    assert len(program.milp.costs) - states < 0.6 * program.size
