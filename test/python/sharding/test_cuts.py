"""Rows that keep a plan within a memory limit."""

from __future__ import annotations

import pytest
from search_programs import adam_step, graph_of, host

from rhino.program.memory import lifetimes
from rhino.sharding import Options
from rhino.sharding.cuts import cut_at, impossible, row
from rhino.sharding.evaluate import memory
from rhino.sharding.levels import LEVELS
from rhino.sharding.meshes import named
from rhino.sharding.planner import MeshSearch
from rhino.sharding.program import AxisProgram
from rhino.sharding.time_model import TimeModel


@pytest.mark.parametrize(("share", "meets"), [(0.5, True), (0.3, True), (0.15, None), (0.1, False), (0.05, False)])
def test_a_program_called_impossible_has_no_answer(share: float, meets: bool | None) -> None:
    step, arguments = adam_step(2, 64, 32)
    graph = graph_of(step, *arguments, donate=(0,))
    setting = MeshSearch(graph, TimeModel(host(8)), Options(), lambda done, total, label: None)._setting(
        named((8,)), LEVELS["O1"].effort
    )
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
