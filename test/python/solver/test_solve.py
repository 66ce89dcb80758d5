"""Answers of the solver against brute force: they fit, bounds are true, and all of it is the same twice."""

import itertools
import json
from math import inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.iopddl import WrongAnswer, compared, evaluate, run_bench
from rhino.errors import RhinoError
from rhino.solver.contest import read_contest, write_contest
from rhino.solver.messages import Messages
from rhino.solver.model import Model
from rhino.solver.problem import FORBIDDEN, Alternatives, ChoiceProblem, PairCosts
from rhino.solver.reduce import reduce_problem
from rhino.solver.solve import Effort, solve

SMALL = Path(__file__).parent / "small.json"


def made(seed: int, nodes: int, limit_share: float, forbidden: float = 0.0) -> ChoiceProblem:
    """A problem like the contest's: whole numbers, some pairs that cost much, memory between least and most."""
    random = np.random.default_rng(seed)
    counts = random.integers(1, 4, nodes)
    alternatives = []
    for count in counts:
        start = int(random.integers(0, 6))
        costs = random.integers(0, 20, count).astype(float)
        alternatives.append(
            Alternatives(costs, random.integers(0, 9, count).astype(float), start, start + int(random.integers(0, 5)))
        )
    pairs = []
    for _ in range(2 * nodes):
        left, right = random.choice(nodes, 2, replace=False)
        table = random.integers(0, 30, (counts[left], counts[right])).astype(float)
        table[random.random(table.shape) < forbidden] = FORBIDDEN
        pairs.append(PairCosts(int(left), int(right), table))
    free = ChoiceProblem(tuple(alternatives), tuple(pairs), None)
    least = free.peak([int(node.usages.argmin()) for node in alternatives])
    most = free.peak([int(node.usages.argmax()) for node in alternatives])
    return ChoiceProblem(tuple(alternatives), tuple(pairs), float(round(least + limit_share * (most - least))))


def optimum(problem: ChoiceProblem) -> float:
    limit = inf if problem.limit is None else problem.limit
    every = itertools.product(*(range(len(node.costs)) for node in problem.nodes))
    costs = [problem.cost(choices) for choices in every if problem.peak(choices) <= limit]
    return min((cost for cost in costs if cost < FORBIDDEN), default=inf)


CASES = st.tuples(
    st.integers(0, 10_000), st.integers(2, 7), st.sampled_from([0.0, 0.2, 0.5, 1.0]), st.sampled_from([0.0, 0.2])
)


@settings(max_examples=25, deadline=None)
@given(CASES)
def test_small_problems_are_solved_to_their_optimum(case: tuple[int, int, float, float]) -> None:
    problem = made(*case)
    best = optimum(problem)
    try:
        answer = solve(problem, Effort(sweeps=10))
    except RhinoError:
        assert best == inf
        return
    assert answer.status == "optimal"
    assert answer.cost == best == problem.cost(answer.choices)
    assert answer.bound <= best
    assert problem.limit is None or problem.peak(answer.choices) <= problem.limit


@settings(max_examples=25, deadline=None)
@given(CASES)
def test_what_messages_prove_is_true_at_any_prices(case: tuple[int, int, float, float]) -> None:
    problem = made(*case)
    try:
        model = Model.of(reduce_problem(problem))
    except RhinoError:
        return
    if not model.costs:
        return
    best = optimum(problem)
    state = Messages(model)
    random = np.random.default_rng(case[0])
    for _ in range(5):
        bound, _ = state.sweep()
        assert bound <= best
        choices = np.array([random.integers(len(costs)) for costs in model.costs])
        slack = state.slack(choices)
        assert (slack >= 0).all()
        # What is left without the slack and what room is worth is a bound, too.
        worth = float(state.prices @ (model.room - model.profile(choices)))
        cost = model.cost(choices)
        assert cost == inf or cost - slack.sum() - worth <= best + 1e-6
        state.prices = random.random(len(model.room)) * random.choice([0.0, 1.0, 10.0])


@pytest.mark.parametrize("seed", range(3))
def test_neighbourhoods_alone_find_what_fits_and_do_so_twice_alike(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rhino.solver.solve._WHOLE_CELLS", 0)
    monkeypatch.setattr("rhino.solver.solve._NEAR_CELLS", 100)
    problem = made(seed, 25, 0.1)
    answers = [solve(problem, Effort(sweeps=20, neighbourhoods=2)) for _ in range(2)]
    assert answers[0] == answers[1]
    assert problem.limit is not None
    assert problem.peak(answers[0].choices) <= problem.limit
    assert answers[0].bound <= answers[0].cost == problem.cost(answers[0].choices)
    monkeypatch.undo()
    best = solve(problem, Effort(sweeps=20))
    assert best.status == "optimal"
    assert answers[0].bound <= best.cost <= answers[0].cost <= 1.1 * best.cost


def test_a_start_is_kept_where_nothing_better_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = made(1, 12, 0.2)
    best = solve(problem, Effort())
    hurried = Effort(sweeps=1, neighbourhoods=0, nodes=0)
    assert solve(problem, hurried, best.choices).cost == best.cost


def test_what_cannot_fit_is_an_error() -> None:
    node = Alternatives(np.array([1.0, 2.0]), np.array([5.0, 4.0]), 0, 2)
    with pytest.raises(RhinoError, match="no choices fit in memory"):
        solve(ChoiceProblem((node,), (), 3.0), Effort())


def test_the_bench_counts_from_the_file_and_refuses_what_is_no_answer(tmp_path: Path) -> None:
    problem = read_contest(SMALL)
    choices = solve(problem, Effort(sweeps=10)).choices
    cost, peak, limit = evaluate(SMALL, choices)
    assert (cost, peak, limit) == (problem.cost(choices), problem.peak(choices), problem.limit)
    with pytest.raises(WrongAnswer, match="choices for"):
        evaluate(SMALL, choices[1:])
    for wrong in (-1, 99):
        with pytest.raises(WrongAnswer, match="node 0 has"):
            evaluate(SMALL, [wrong, *choices[1:]])


def test_the_bench_writes_a_row_per_instance(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    run_bench([str(SMALL), "--seconds", "20", "--json", str(out)])
    (row,) = json.loads(out.read_text())
    assert row["usage_ok"]
    assert row["status"] == "optimal"
    assert row["bound"] <= row["cost"]
    assert compared(row, {"small": {"best": row["cost"], "xla": None}})["to_best"] == 1


if __name__ == "__main__":
    write_contest(made(7, 12, 0.6), SMALL)
