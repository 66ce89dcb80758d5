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
from rhino.sharding import program as program_module
from rhino.sharding.costs import Costs
from rhino.sharding.meeting import alike, transport
from rhino.sharding.milp import Milp, _Solver
from rhino.sharding.program import AxisProgram
from rhino.sharding.recurring import size_of

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


def test_given_states_are_an_answer_with_all_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a large program starts from meets its rows, and costs what it costs with these states fixed."""
    monkeypatch.setattr(program_module, "FAR", 0)
    function, arguments = adam_step(3, 64, 128)
    graph = graph_of(function, *arguments, donate=(0,))
    costs = costs_of(graph, RingModel(host(8), (2, 4)), seconds_of(graph, 1e-12))
    blank = [(0, 0)] * len(costs.quotient.counts)
    first = AxisProgram(costs, (1,), blank, {})
    first.build()
    placed = first.solve(60.0)
    assert placed is not None
    program = AxisProgram(costs, (0, 1), placed.states, {})
    program.build()
    start = program._start()
    known = _Solver(program.milp, inf, 1e-6, {}, work=1)._known(start)
    assert known is not None
    for v in range(program.decided):
        program.milp.row(start[v], start[v], [(v, 1.0)])
    over = sum(max(0.0, seconds) for seconds in known.over)
    assert known.shown + over == pytest.approx(program.milp.solve().objective, rel=1e-6)


def test_the_size_of_a_program_is_counted_only_as_far_as_it_matters() -> None:
    function, arguments = adam_step(3, 64, 128)
    graph = graph_of(function, *arguments, donate=(0,))
    costs = costs_of(graph, RingModel(host(8), (2, 4)), seconds_of(graph, 1e-12))
    blank = [(0, 0)] * len(costs.quotient.counts)
    whole = size_of(costs, (0, 1), blank, {}, {})
    assert whole == AxisProgram(costs, (0, 1), blank, {}).size
    assert 10 < size_of(costs, (0, 1), blank, {}, {}, enough=10) < whole


def test_states_that_all_ends_see_alike_are_one_group() -> None:
    found = alike(((0,), (1,), (2,), (3,)), ((-1, 0, -1, 1), (-1, 0, -1, 0)))
    assert found.states == ((0,), (1,), (3,))
    assert found.sizes == (2, 1, 1)
    assert found.positions == (0, 2, 1, 3)
    assert found.of == (0, 1, 0, 2)


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
