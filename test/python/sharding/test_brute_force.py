"""The search against every plan there is, on small random programs: exact on one axis, close on two.

Also what tying repeats may and may not change: costs never, the LP's optimum never.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import product
from math import prod
from random import Random

import pytest
from alpha_beta import AlphaBeta, Textbook
from hand_graphs import Builder, choices, costs_of, given_states, graphs, least_total, seconds_of, total
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from rhino.machine import Cluster
from rhino.program import Graph
from rhino.sharding.costs import Costs, States
from rhino.sharding.descent import Setting, descend, jointly, start_from_nothing
from rhino.sharding.hiding import Hiding
from rhino.sharding.milp import Milp
from rhino.sharding.overlap import ComputeWindow, hideable_transfers
from rhino.sharding.pinning import Open
from rhino.sharding.planner import Options, plan_sharding
from rhino.sharding.program import AxisProgram

MANY = 20_000
PER_FLOP = st.sampled_from((0.0, 0.1, 1.0))
ALPHA, BETA = 7.0, 1.0

thorough = settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)


def line(*sizes: int, reduce_scatter: bool = True) -> AlphaBeta:
    axes = range(len(sizes))
    return AlphaBeta(sizes, [ALPHA * (1 + a) for a in axes], [BETA / (1 + 3 * a) for a in axes], reduce_scatter)


def fixed(pinned: dict[int, States]) -> dict[int, Open]:
    """As a search takes them: one state for each axis."""
    return {k: tuple(frozenset({s}) for s in states) for k, states in pinned.items()}


def least(costs: Costs, pinned: dict[int, States]) -> float:
    """The cheapest of all plans that keep what is pinned."""
    every = [[pinned[k]] if k in pinned else found for k, found in enumerate(choices(costs))]
    assume(prod(map(len, every)) <= MANY)
    return min(total(costs, states) for states in product(*every))


def relaxed(costs: Costs) -> float:
    """The optimum of the linear relaxation on the first axis, others replicated."""
    blank: States = (0,) * len(costs.sizes)
    program = AxisProgram(costs, (0,), [blank] * len(costs.quotient.counts), {})
    program.build()
    milp: Milp = program.milp
    milp.integers = [False] * len(milp.integers)
    return milp.solve().objective


@thorough
@given(st.data(), graphs(), PER_FLOP, st.booleans(), st.booleans())
def test_one_axis_is_exact(data: st.DataObject, graph: Graph, per_flop: float, merge: bool, scatter: bool) -> None:
    costs = costs_of(graph, line(4, reduce_scatter=scatter), seconds_of(graph, per_flop), merge=merge)
    pinned = given_states(data.draw, costs)
    expected = least(costs, pinned)
    found = descend(Setting(costs, fixed(pinned)), [0])
    assert found is not None
    assert found.objective == pytest.approx(expected, rel=1e-5, abs=1e-4)
    # The program's objective is what the plan really costs.
    assert total(costs, found.states) == pytest.approx(expected, rel=1e-5, abs=1e-4)


def two_orders(costs: Costs, pinned: dict[int, States]) -> float:
    found = [descend(Setting(costs, fixed(pinned)), order) for order in ([0, 1], [1, 0])]
    assert all(f is not None for f in found)
    for f in found:
        assert f is not None
        assert total(costs, f.states) == pytest.approx(f.objective, rel=1e-5, abs=1e-4)
    return min(f.objective for f in found if f is not None)


def test_two_axes_are_never_better_and_mostly_exact() -> None:
    """Placing one axis after the other, in both orders, is not exact; it is how level O1 searches."""
    ratios: list[float] = []

    @thorough
    @given(st.data(), graphs(), PER_FLOP)
    def compare(data: st.DataObject, graph: Graph, per_flop: float) -> None:
        costs = costs_of(graph, line(2, 2), seconds_of(graph, per_flop))
        pinned = given_states(data.draw, costs)
        expected = least(costs, pinned)
        found = two_orders(costs, pinned)
        assert found >= expected * (1 - 1e-5) - 1e-4
        assert found <= 1.5 * expected + 1e-3
        ratios.append(found / expected if expected > 1e-3 else 1.0)

    compare()
    exact = sum(ratio < 1 + 1e-4 for ratio in ratios) / len(ratios)
    print(f"two axes: exact in {exact:.0%} of {len(ratios)} programs, worst {max(ratios):.3f}")
    assert exact >= 0.8


MESHES = st.sampled_from(((4,), (2, 2), (8,), (2, 4), (4, 2), (2, 2, 2)))


@settings(thorough, max_examples=20)  # each enumerates all plans
@given(st.data(), graphs(), PER_FLOP, MESHES, st.booleans())
def test_all_axes_at_once_are_exact(
    data: st.DataObject, graph: Graph, per_flop: float, mesh: tuple[int, ...], merge: bool
) -> None:
    costs = costs_of(graph, line(*mesh), seconds_of(graph, per_flop), tie=False, merge=merge)
    pinned = given_states(data.draw, costs)
    setting = Setting(costs, fixed(pinned))
    expected = least_total(costs, pinned)
    start = start_from_nothing(setting)
    assert start is not None
    found = jointly(setting, start)
    assert found.objective == pytest.approx(expected, rel=1e-5, abs=1e-4)
    assert found.bound == pytest.approx(expected, rel=1e-5, abs=1e-4)
    assert total(costs, found.states) == pytest.approx(expected, rel=1e-5, abs=1e-4)


@thorough
@given(st.data(), graphs(), PER_FLOP)
def test_elimination_finds_what_enumeration_does(data: st.DataObject, graph: Graph, per_flop: float) -> None:
    costs = costs_of(graph, line(2, 2), seconds_of(graph, per_flop))
    pinned = given_states(data.draw, costs)
    assert least_total(costs, pinned) == pytest.approx(least(costs, pinned), rel=1e-9, abs=1e-9)


@thorough
@given(st.data(), graphs(), st.sampled_from((0.1, 1.0)), st.sampled_from(((4,), (2, 2))))
def test_overlap_is_exact(data: st.DataObject, graph: Graph, per_flop: float, mesh: tuple[int, ...]) -> None:
    costs = costs_of(graph, line(*mesh), seconds_of(graph, per_flop), tie=False)
    hideable = hideable_transfers(costs.problem, costs.quotient, Cluster.load("dgx-h100:1"))
    within = {t: data.draw(st.integers(0, 2)) for t in sorted(hideable)}
    shares = [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.5, 0.2, 0.3)]
    spread = {k: data.draw(st.sampled_from(shares)) for k in range(len(costs.quotient.counts))}
    windows = ComputeWindow(0.5, 0.95), ComputeWindow(0.9, 0.75), ComputeWindow(0.7, 0.5)
    costs = replace(costs, hiding=Hiding(windows, spread, within), hideable=hideable)
    pinned = given_states(data.draw, costs)
    setting = Setting(costs, fixed(pinned))
    expected = least(costs, pinned)
    start = start_from_nothing(setting)
    assert start is not None
    found = jointly(setting, start)
    assert total(costs, found.states) == pytest.approx(expected, rel=1e-5, abs=1e-4)
    assert found.objective == pytest.approx(expected, rel=1e-5, abs=1e-4)


@pytest.mark.long
@thorough
@given(graphs((2, 8, 8, 16)), PER_FLOP, st.sampled_from((4, 8)))
def test_level_o2_finds_the_best_plan_of_all_meshes(graph: Graph, per_flop: float, devices: int) -> None:
    seconds = seconds_of(graph, per_flop)
    meshes = {4: ((4,), (2, 2)), 8: ((8,), (2, 4), (4, 2), (2, 2, 2))}[devices]
    # The search knows that nothing is in a loop here, where parts would be carved out and sums written apart.
    all_costs = (costs_of(graph, line(*mesh), seconds, tie=False) for mesh in meshes)
    expected = min(least_total(replace(costs, carving={}, apart={}), {}) for costs in all_costs)
    cluster = replace(Cluster.load("dgx-h100:1"), devices_per_host=devices)
    model = Textbook(cluster, lambda sizes: line(*sizes), lambda _: seconds)
    found = plan_sharding(graph, cluster, Options(level="O2"), model=model)
    assert found.predicted.step_time_s == pytest.approx(expected, rel=1e-5, abs=1e-4)


def spread(tied: Costs, states: Sequence[States]) -> list[States]:
    """The states of every node, given those of its class."""
    return [states[k] for k in tied.quotient.klass]


@thorough
@given(graphs(), PER_FLOP, st.booleans(), st.randoms(use_true_random=False))
def test_a_tied_plan_costs_what_it_costs_untied(graph: Graph, per_flop: float, merge: bool, random: Random) -> None:
    doubled = twice(graph)
    seconds = seconds_of(doubled, per_flop)
    tied, plain = (costs_of(doubled, line(4), seconds, tie, merge) for tie in (True, False))
    for _ in range(5):
        states = [random.choice(every) for every in choices(tied)]
        assert total(tied, states) == pytest.approx(total(plain, spread(tied, states)), rel=1e-9, abs=1e-9)


@thorough
@given(graphs(), PER_FLOP)
def test_tying_keeps_the_optimum_of_the_relaxation(graph: Graph, per_flop: float) -> None:
    doubled = twice(graph)
    seconds = seconds_of(doubled, per_flop)
    tied, plain = (costs_of(doubled, line(4), seconds, tie) for tie in (True, False))
    assert len(tied.quotient.counts) <= len(plain.quotient.counts) // 2 + 1
    assert relaxed(tied) == pytest.approx(relaxed(plain), rel=1e-5, abs=1e-4)


def twice(graph: Graph) -> Graph:
    """The program and its copy, side by side: every decision is there twice."""
    values, ops = len(graph.values), len(graph.ops)
    both = deepcopy(graph)
    for v in graph.values:
        both.values.append(replace(v, index=v.index + values, producer=v.producer + ops if v.producer >= 0 else -1))
    for op in graph.ops:
        both.ops.append(
            replace(
                op,
                index=op.index + ops,
                operands=tuple(v + values for v in op.operands),
                results=tuple(v + values for v in op.results),
                region_end=op.region_end + ops,
            )
        )
    for a in graph.arguments:
        alias = a.alias + len(graph.outputs) if a.alias >= 0 else -1
        both.arguments.append(replace(a, value=a.value + values, alias=alias))
    both.outputs = (*graph.outputs, *(v + values for v in graph.outputs))
    return both


@pytest.mark.parametrize("merge", [True, False])
def test_equal_summands_are_reduced_as_often_as_there_are(merge: bool) -> None:
    # Two products that nothing tells apart, added: one class, but two partial results, summed before one reduction
    # where the target does that, and reduced one by one where it does not.
    build = Builder()
    x, w = build.argument(8, 64), [build.argument(64, 8) for _ in range(2)]
    graph = build.finish(build.same("add", *(build.dot(x, v) for v in w)))
    tied, plain = (
        replace(costs_of(graph, line(4), seconds_of(graph, 1.0), tie, merge), carving={}) for tie in (True, False)
    )
    kinds = [tied.problem.nodes[n].kind for n in tied.quotient.nodes]
    (dots,) = (k for k, n in enumerate(tied.quotient.counts) if n == 2 and kinds[k] == "op")
    # Only the contracted dimension is split.
    states = [(3,) if k == dots else (0,) for k in range(len(tied.quotient.counts))]
    reduced = ALPHA + 2 * 3 / 4 * 8 * 8 * 4
    assert total(plain, spread(tied, states)) - sum(
        plain.node(k, s) for k, s in enumerate(spread(tied, states))
    ) == pytest.approx(reduced * (1 if merge else 2))
    assert total(tied, states) == pytest.approx(total(plain, spread(tied, states)))


def test_data_and_parameters_of_one_shape_are_not_tied() -> None:
    # Only one of the two is brought from the host every step.
    build = Builder()
    pair = [build.argument(16, 16, role=role) for role in ("batch", "param")]
    graph = build.finish(*(build.same("tanh", v) for v in pair))
    tied, plain = (
        replace(costs_of(graph, line(4), seconds_of(graph, 1.0), tie), batch_byte_s=1.0) for tie in (True, False)
    )
    states = [(1,)] * len(tied.quotient.counts)
    assert total(tied, states) == pytest.approx(total(plain, spread(tied, states)))
    assert len(tied.quotient.counts) == 2


def test_a_plan_of_twelve_layers_is_the_same_tied_and_untied() -> None:
    build = Builder()
    h = build.argument(16, 64)
    for _ in range(12):
        h = build.same("tanh", build.dot(h, build.argument(64, 64)))
    graph = build.finish(h)
    found = []
    for tie in (True, False):
        costs = costs_of(graph, line(4), seconds_of(graph, 0.001), tie)
        best = descend(Setting(costs, {}), [0])
        assert best is not None
        found.append((best.objective, spread(costs, best.states)))
    assert found[0][0] == pytest.approx(found[1][0])
