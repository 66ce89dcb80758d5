"""What recurs between classes is made once: prices of conversions, and rows that join two choices."""

from __future__ import annotations

from itertools import product
from math import inf

import pytest
from hand_graphs import costs_of, seconds_of
from hypothesis import given, settings
from hypothesis import strategies as st
from search_programs import adam_step, graph_of, host

from rhino.machine.collectives import RingModel
from rhino.sharding.costs import Costs
from rhino.sharding.meeting import alike, transport
from rhino.sharding.milp import Milp
from rhino.sharding.program import AxisProgram

SIZES = st.lists(st.integers(1, 3), min_size=1, max_size=4).map(tuple)


def test_a_conversion_is_priced_once_for_all_programs_of_a_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    function, arguments = adam_step(3, 64, 128)
    graph = graph_of(function, *arguments, donate=(0,))
    costs = costs_of(graph, RingModel(host(8), (2, 4)), seconds_of(graph, 1e-12))
    asked: list[int] = []
    transfer = Costs.transfer
    monkeypatch.setattr(Costs, "transfer", lambda *args: asked.append(1) or transfer(*args))
    programs = [AxisProgram(costs, (1,), [(0, 0)] * len(costs.quotient.counts), {}) for _ in range(2)]
    programs[0].build()
    first = len(asked)
    # Adam's moments travel as their parameter does.
    assert 0 < first < sum(len(found.entries) for c in programs[0].charges.values() for found, _, _ in c)
    programs[1].build()
    assert len(asked) == first
    assert programs[1].milp == programs[0].milp


def test_states_that_all_ends_see_alike_are_one_group() -> None:
    found = alike(((0,), (1,), (2,), (3,)), ((-1, 0, -1, 1), (-1, 0, -1, 0)))
    assert found.states == ((0,), (1,), (3,))
    assert found.sizes == (2, 1, 1)
    assert found.positions == (0, 2, 1, 3)


@given(SIZES, SIZES, st.data())
@settings(max_examples=80, deadline=None)
def test_the_columns_of_a_pair_are_one_where_both_are_chosen(
    lefts: tuple[int, ...], rights: tuple[int, ...], data: st.DataObject
) -> None:
    pairs = list(product(range(len(lefts)), range(len(rights))))
    priced = data.draw(st.dictionaries(st.sampled_from(pairs), st.floats(0.5, 2.0)))
    shape = transport(lefts, rights, frozenset(priced))
    for i, j in pairs:
        milp = Milp()
        x, y = (list(milp.variables(sum(sizes))) for sizes in (lefts, rights))
        chosen = {sum(lefts[:i]), sum(lefts) + sum(rights[:j])}
        for v in (*x, *y):
            milp.row(float(v in chosen), inf if v in chosen else 0.0, [(v, 1.0)])
        columns = [*x, *y, *milp.variables(shape.new)]
        milp.rows.extend(shape.rows, columns)
        for pair, seconds in priced.items():
            for c in shape.at[pair]:
                milp.costs[columns[c]] += seconds
        assert milp.solve().objective == pytest.approx(priced.get((i, j), 0.0), abs=1e-9)
