"""Rows that keep a plan within a memory limit."""

from __future__ import annotations

import pytest
from search_programs import adam_step, graph_of, host

from rhino.program import Graph
from rhino.program.memory import lifetimes
from rhino.sharding import Options
from rhino.sharding.cuts import arguments_cut, cut_at, impossible, row
from rhino.sharding.descent import Setting, descend
from rhino.sharding.kept import memory
from rhino.sharding.levels import LEVELS
from rhino.sharding.meshes import named
from rhino.sharding.planner import MeshSearch
from rhino.sharding.program import AxisProgram
from rhino.sharding.time_model import TimeModel


def training(tokens: int = 64, width: int = 32) -> Graph:
    step, arguments = adam_step(2, tokens, width)
    return graph_of(step, *arguments, donate=(0,))


def search(graph: Graph, limit: int | None = None) -> MeshSearch:
    return MeshSearch(graph, TimeModel(host(8)), Options(memory_limit=limit), lambda done, total, label: None)


def setting_of(graph: Graph, *sizes: int) -> Setting:
    return search(graph)._setting(named(sizes), LEVELS["O1"].effort)


@pytest.mark.parametrize(("share", "meets"), [(0.5, True), (0.3, True), (0.15, None), (0.1, False), (0.05, False)])
def test_a_program_called_impossible_has_no_answer(share: float, meets: bool | None) -> None:
    graph = training()
    setting = setting_of(graph, 8)
    costs, life = setting.costs, lifetimes(graph)
    whole = [(0,)] * len(costs.quotient.counts)
    used = memory(costs, whole, life)
    cut = cut_at(costs, whole, life, used.at, int(used.peak_bytes * share))
    program = AxisProgram(costs, (0,), whole, {})
    said = impossible(program, cut)
    program.build()
    program.limit(*row(program, cut))
    found = program.solve(60.0)
    assert not (said and found is not None)
    # Near the limit copies may take what values leave: such a program is built before it is given up.
    if meets is not None:
        assert (not said, found is not None) == (meets, meets)


@pytest.mark.parametrize("sizes", [(8,), (4, 2), (2, 4)])
def test_arguments_are_held_by_themselves(sizes: tuple[int, ...]) -> None:
    graph = training(4096)
    setting = setting_of(graph, *sizes)
    costs, life = setting.costs, lifetimes(graph)
    whole = [(0,) * len(sizes)] * len(costs.quotient.counts)
    arguments = memory(costs, whole, life).argument_bytes
    order = list(range(len(sizes)))
    fastest = descend(setting, order)
    assert fastest is not None
    limit = arguments // 5
    assert memory(costs, fastest.states, life).argument_bytes > limit
    # No axis of two is enough: the one that is placed first leaves as much as the other can split.
    held = descend(setting, order, None, [arguments_cut(costs, fastest.states, limit)])
    assert held is not None
    assert memory(costs, held.states, life).argument_bytes <= limit
    assert held.objective >= fastest.objective
    assert descend(setting, order, None, [arguments_cut(costs, fastest.states, arguments // 16)]) is None


def test_a_search_begins_with_plans_that_hold_their_arguments() -> None:
    graph = training(4096)
    free = search(graph).free()
    tight = search(graph, free.argument_bytes // 2).free()
    assert (free.tight, tight.tight) == (False, True)
    assert tight.argument_bytes <= tight.limit_bytes
    assert tight.step_time_s > free.step_time_s
    assert not search(graph, free.argument_bytes).free().tight
