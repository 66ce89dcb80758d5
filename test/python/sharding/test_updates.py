"""Parameters and their updates as two decisions: where they part, what a return costs and holds, and that no plan with
both laid out by hand is better than what is found.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from alpha_beta import AlphaBeta
from hand_graphs import Builder, costs_of, least_total, seconds_of, total
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from search_programs import host

from rhino.program import Argument, Graph
from rhino.sharding.cones import build_problem
from rhino.sharding.costs import Costs
from rhino.sharding.descent import Setting, jointly, start_from_nothing
from rhino.sharding.overlap import hideable_transfers
from rhino.sharding.planner import Options, plan_sharding
from rhino.sharding.returning import made_bytes, passing_bytes
from rhino.sharding.symmetry import tie_repeats
from rhino.sharding.updates import LARGE, MANY, parted_share


class Steps(Builder):
    """Training steps with one moment."""

    def given(self, role: str, alias: int, *shape: int) -> int:
        v = self.value(shape, -1)
        self.graph.arguments.append(Argument(v, f"a{v}", role, alias >= 0, alias))
        return v

    def layer(self, w: int, m: int, x: int, reads: int = 1) -> tuple[int, int, int]:
        """The next parameter, the next moment, and what the layer makes, which reads the parameter so often."""
        h = x
        for _ in range(reads):
            h = self.same("tanh", self.dot(h, w))
        moment = self.same("add", m, self.dot(self.transpose(x), h))
        return self.same("subtract", w, moment), moment, h


def step(batch: int, width: int, layers: int = 1, reads: int = 1) -> tuple[Graph, list[tuple[int, int, int, int]]]:
    """A chain of layers, and of each its parameter, moment, next parameter and next moment."""
    build, found = Steps(), []
    h = build.given("batch", -1, batch, width)
    for i in range(layers):
        w, m = (build.given(role, 2 * i + j, width, width) for j, role in enumerate(("param", "opt_state")))
        nw, nm, h = build.layer(w, m, h, reads)
        found.append((w, m, nw, nm))
    return build.finish(*(v for _, _, nw, nm in found for v in (nw, nm))), found


def test_an_update_is_laid_out_with_its_moments_and_apart_from_its_parameter() -> None:
    graph, ((w, m, nw, nm),) = step(16, 8)
    problem = build_problem(graph)
    assert problem.node_of[w] != problem.node_of[nw] == problem.node_of[nm] == problem.node_of[m]
    assert problem.returned == {nw: w}
    (back,) = (t for t in problem.transfers if t.kind == "return")
    assert (back.value, back.sources[0].node, back.targets[0].node) == (nw, problem.node_of[nw], problem.node_of[w])
    # What computing reads, and the update.
    (use,) = (t for t in problem.transfers if t.kind == "use" and t.value == w)
    assert [problem.nodes[end.node].kind for end in use.targets] == ["op", "cone"]


def test_a_share_of_the_parameters_leaves_small_ones_with_their_updates() -> None:
    build = Steps()
    x = build.given("batch", -1, 16, 64)
    w, m = build.given("param", 0, 64, 64), build.given("opt_state", 1, 64, 64)
    small, sm = build.given("param", 2, 64, 2), build.given("opt_state", 3, 64, 2)
    outputs = [*build.layer(w, m, x)[:2]]
    moment = build.same("add", sm, build.dot(build.transpose(x), build.dot(x, small)))
    graph = build.finish(*outputs, build.same("subtract", small, moment), moment)
    assert list(build_problem(graph).returned.values()) == [w, small]
    assert list(build_problem(graph, parted=0.9).returned.values()) == [w]
    assert not build_problem(graph, parted=0.0).returned


def without_state(build: Steps, w: int, m: int, x: int) -> tuple[int, ...]:
    del m
    return (build.same("subtract", w, build.dot(build.transpose(x), build.dot(x, w))),)


def read_by_its_update_alone(build: Steps, w: int, m: int, x: int) -> tuple[int, ...]:
    moment = build.same("add", m, build.dot(build.transpose(x), x))
    return build.same("subtract", w, moment), moment


def returned_twice(build: Steps, w: int, m: int, x: int) -> tuple[int, ...]:
    following, moment, _ = build.layer(w, m, x)
    return following, moment, following


def joined_elsewhere(build: Steps, w: int, m: int, x: int) -> tuple[int, ...]:
    following, moment, _ = build.layer(w, m, x)
    return following, moment, build.same("multiply", build.same("tanh", w), build.same("negate", following))


@pytest.mark.parametrize("make", [without_state, read_by_its_update_alone, returned_twice, joined_elsewhere])
def test_where_they_are_one_decision(make: object) -> None:
    build = Steps()
    x = build.given("batch", -1, 8, 8)
    aliased = make is not without_state
    w, m = build.given("param", 0, 8, 8), build.given("opt_state", 1 if aliased else -1, 8, 8)
    assert callable(make)
    outputs = make(build, w, m, x)
    problem = build_problem(build.finish(*outputs))
    assert problem.returned == {}
    assert problem.node_of[w] == problem.node_of[outputs[0]]


def costs(graph: Graph, *sizes: int) -> Costs:
    return costs_of(graph, AlphaBeta(sizes, [7.0] * len(sizes), [1.0] * len(sizes)), seconds_of(graph, 0.1))


@pytest.mark.parametrize(
    ("made", "kept", "apart", "passing"),
    [
        ((0, -1), (-1, -1), 128, 0),  # gathered into the parameter's buffer
        ((1, -1), (-1, -1), 128, 256),  # gathered, then laid out
        ((0, 1), (-1, -1), 64, 256),
        ((0, 0), (-1, -1), 64, 0),
        ((1, -1), (0, -1), 128, 128),  # moved
        ((0, -1), (0, -1), 0, 0),
        ((-1, -1), (0, -1), 256, 0),  # sliced
    ],
)
def test_what_a_return_holds(made: tuple[int, int], kept: tuple[int, int], apart: int, passing: int) -> None:
    graph, ((_, _, nw, _),) = step(16, 8)
    found = costs(graph, 2, 2)
    assert made_bytes(found, nw, made, kept) == apart
    assert passing_bytes(found, nw, made, kept) == passing


def test_of_many_parameters_the_small_are_laid_out_with_their_updates() -> None:
    few, many = (step(16, 8, layers=layers)[0] for layers in (MANY, MANY + 1))
    assert parted_share(few) == 1.0
    assert parted_share(many) == LARGE < 1.0
    many.pins[many.arguments[0].value] = ("argument 0", ((), ()))
    assert parted_share(many) == 1.0


def test_a_return_is_hidden_where_most_of_its_like_are_followed_by_computing() -> None:
    graph, _ = step(1 << 14, 1024, layers=8)
    problem = build_problem(graph)
    quotient = tie_repeats(problem)
    cluster = host(4)
    hideable = hideable_transfers(problem, quotient, cluster)
    returns = [t for t in problem.transfers if t.kind == "return"]
    hidden = [quotient.tied[t.index] in hideable for t in returns]
    assert hidden[0]
    assert not hidden[-1]


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from((4, 8, 7, 64)), st.sampled_from((4, 8, 6)), st.integers(1, 2), st.integers(1, 2),
    st.sampled_from(((4,), (2, 2))),
)  # fmt: skip
def test_the_search_is_exact(batch: int, width: int, layers: int, reads: int, mesh: tuple[int, ...]) -> None:
    graph, _ = step(batch, width, layers, reads)
    found = costs_of(graph, costs(graph, *mesh).comm, seconds_of(graph, 0.1), tie=False)
    setting = Setting(found, {})
    start = start_from_nothing(setting)
    assert start is not None
    best = jointly(setting, start)
    assert best.objective == pytest.approx(least_total(found, {}), rel=1e-5, abs=1e-4)
    assert total(found, best.states) == pytest.approx(best.objective, rel=1e-5, abs=1e-4)


@pytest.mark.parametrize("reads", [1, 3])
@pytest.mark.parametrize(("batch", "width"), [(16384, 256), (4096, 1024), (256, 2048)])
def test_no_layouts_that_a_user_can_pin_are_better(batch: int, width: int, reads: int) -> None:
    graph, ((w, m, _, _),) = step(batch, width, reads=reads)
    cluster, options = host(4), Options(mesh=(4,))
    best = plan_sharding(graph, cluster, options).predicted
    layouts = ((), ()), (("x",), ()), ((), ("x",))
    for parameter, moment in product(layouts, layouts):
        pinned = replace(graph, pins={w: ("w", parameter), m: ("m", moment)})
        by_hand = plan_sharding(pinned, cluster, options).predicted
        assert best.step_time_s <= by_hand.step_time_s * (1 + 1e-3), (parameter, moment)
