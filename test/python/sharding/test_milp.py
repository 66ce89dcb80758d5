"""The integer programs against trying everything: one-hot groups, a row, and a penalty above zero."""

from __future__ import annotations

from itertools import product
from math import inf

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rhino.sharding import milp as milp_module
from rhino.sharding.milp import Bases, Milp

SEEDS = st.integers(0, 10**6)


def problem(
    seed: int, groups: int = 4, choices: int = 3, room: float = inf, penalties: int = 1
) -> tuple[Milp, list[list[int]], list[float]]:
    """One choice per group: costs, a weight per choice of which `room` is allowed, penalties on what exceeds zero."""
    random = np.random.default_rng(seed)
    milp = Milp()
    chosen = [[milp.variable(float(random.uniform(1, 9)), True) for _ in range(choices)] for _ in range(groups)]
    for group in chosen:
        milp.row(1, 1, [(v, 1.0) for v in group])
    weights = [float(w) for w in random.integers(1, 9, groups * choices)]
    if room < inf:
        milp.row(-inf, room, list(enumerate(weights)))
    milp.penalties = [{v: float(random.uniform(-3, 3)) for group in chosen for v in group} for _ in range(penalties)]
    return milp, chosen, weights


def tried(milp: Milp, chosen: list[list[int]], weights: list[float], room: float) -> float:
    """The least objective of all choices within the room; infinite if there are none."""
    return min(
        (
            sum(milp.costs[v] for v in pick) + sum(max(0.0, sum(excess[v] for v in pick)) for excess in milp.penalties)
            for pick in product(*chosen)
            if sum(weights[v] for v in pick) <= room
        ),
        default=inf,
    )


@given(SEEDS, st.integers(4, 20), st.integers(0, 3))
@example(seed=262, room=17, penalties=1)  # HiGHS 1.16 finds the optimum, and hands the start back
@settings(max_examples=60, deadline=None)
def test_the_optimum_is_that_of_trying_everything(seed: int, room: int, penalties: int) -> None:
    milp, chosen, weights = problem(seed, room=room, penalties=penalties)
    best = tried(milp, chosen, weights, room)
    found = milp.solve()
    if best == inf:
        assert found.status == "infeasible"
        return
    assert found.objective == pytest.approx(best, rel=1e-5)
    assert found.bound <= best * (1 + 1e-6)


@given(SEEDS, st.integers(8, 20))
@settings(max_examples=30, deadline=None)
def test_an_answer_that_is_not_proved_is_still_one(seed: int, room: int) -> None:
    milp, chosen, weights = problem(seed, room=room)
    best = tried(milp, chosen, weights, room)
    found = milp.solve(gap=1e-3, prove=False)
    if best == inf:
        assert found.status == "infeasible"
        return
    picked = [v for group in chosen for v in group if found.values[v] > 0.5]
    assert len(picked) == len(chosen)
    assert sum(weights[v] for v in picked) <= room
    assert found.bound - 1e-6 <= best <= found.objective + 1e-6


@given(SEEDS, st.floats(0.5, 1.5))
@settings(max_examples=30, deadline=None)
def test_nothing_below_the_cutoff_is_ever_given_up(seed: int, share: float) -> None:
    milp, chosen, weights = problem(seed)
    best = tried(milp, chosen, weights, inf)
    found = milp.solve(cutoff=share * best)
    if found.status == "hopeless":
        assert share * best < found.bound <= best * (1 + 1e-6)
        assert found.objective == inf
    else:
        assert found.objective == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize("groups", [30, 60])
def test_branching_ends_after_so_much_work(groups: int) -> None:
    """Subset sums: every choice fits nearly, and a proof needs far more nodes than these."""
    milp, random = Milp(), np.random.default_rng(groups)
    weights = [int(w) * 2 for w in random.integers(10**5, 10**6, groups)]
    taken = [milp.variable(-float(w), True) for w in weights]
    milp.row(-inf, sum(weights) // 2 // 2 * 2 + 1, list(zip(taken, map(float, weights), strict=True)))
    found = milp.solve(gap=1e-12, work=20 * groups)
    assert found.status == "limit"
    assert found.bound <= found.objective < 0
    assert found == milp.solve(gap=1e-12, work=20 * groups)
    more = milp.solve(gap=1e-12, work=2000 * groups)
    assert found.bound <= more.objective <= found.objective


def test_what_ended_before_it_had_an_answer_is_not_infeasible() -> None:
    milp, *_ = problem(3)
    found = milp.solve(time_limit_s=0.0)
    assert (found.status, found.objective, found.values) == ("limit", inf, ())
    assert milp.solve().status == "optimal"


def test_a_cutoff_below_the_relaxation_is_hopeless() -> None:
    milp = Milp()
    pair = [milp.variable(cost, True) for cost in (2.0, 3.0)]
    milp.row(1, 1, [(v, 1.0) for v in pair])
    assert milp.solve(cutoff=1.9).status == "hopeless"
    assert milp.solve(cutoff=2.1).objective == pytest.approx(2.0)


@given(SEEDS)
@settings(max_examples=40, deadline=None)
def test_a_known_answer_on_the_right_changes_no_optimum(seed: int) -> None:
    """The relaxation's price is looked for between the line of the price 0 and that of a known answer."""
    milp, chosen, weights = problem(seed)
    best = tried(milp, chosen, weights, inf)
    start = {group[seed % 3]: 1.0 for group in chosen}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(milp_module, "FAR", 0)
        found = milp.solve(start=start)
    assert found.objective == pytest.approx(best, rel=1e-5)
    assert found.bound <= best * (1 + 1e-6)


def test_a_known_answer_spares_the_highest_price(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, ...]] = []
    at = milp_module._Solver._at
    monkeypatch.setattr(milp_module._Solver, "_at", lambda self, prices: asked.append(prices) or at(self, prices))
    milp, other = Milp(), Milp()
    for program in (milp, other):
        x = [program.variable(cost, True) for cost in (1.0, 1.2, 3.0)]
        program.row(1, 1, [(v, 1.0) for v in x])
        program.penalties = [{x[0]: 1.0, x[1]: -0.1, x[2]: -1.0}]
    known = {1: 1.0}
    plain = milp.solve(start=known)
    assert (1.0,) in asked
    asked.clear()
    monkeypatch.setattr(milp_module, "FAR", 0)
    assert other.solve(start=known) == plain
    assert (1.0,) not in asked
    # What does not meet the rows is no answer, and says nothing.
    asked.clear()
    assert other.solve(start={}) == other.solve(start={1: 1.0, 2: 1.0}) == plain
    assert (1.0,) in asked


@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_bases_of_a_program_of_the_same_shape_change_no_answer(seed: int) -> None:
    bases: Bases = {}
    first, _, _ = problem(seed, room=12)
    first.solve(bases=bases)
    second, chosen, weights = problem(seed, room=12)
    assert second.shape() == first.shape()
    second.costs[1] *= 1.2
    assert second.shape() == first.shape()
    best = tried(second, chosen, weights, 12)
    found = second.solve(bases=bases)
    assert found.objective == pytest.approx(best, rel=1e-5) or best == inf == found.objective


def test_equal_programs_begin_where_the_first_ended() -> None:
    bases: Bases = {}
    milp, _, _ = problem(5, groups=40, choices=6)
    counts: list[int] = []
    for _ in range(2):
        solver = milp_module._Solver(milp, inf, 1e-6, bases, work=1)
        relaxed = solver._relaxed(inf, None)
        assert relaxed is not None
        counts.append(solver.highs.getInfo().simplex_iteration_count)
    assert counts[1] == 0
    assert counts[0] > 0


def test_nothing_to_decide_costs_nothing() -> None:
    assert Milp().solve().objective == 0.0


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """Also not what HiGHS 1.16 says while it is made: standard output may be a plan's JSON."""
    milp, _, _ = problem(0)
    assert milp.solve().status == "optimal"
    assert capfd.readouterr() == ("", "")


def test_programs_are_told_apart_by_every_number() -> None:
    def digest(gap: float = 1e-3, prove: bool = True, cutoff: float = inf, at: float = 1.0, **changed: float) -> bytes:
        milp, _, _ = problem(3)
        milp.rows.add(changed.get("low", 0.0), changed.get("high", 9.0), [(0, changed.get("by", 1.0))])
        milp.costs[1] += changed.get("more", 0.0)
        milp.penalties[0][2] += changed.get("over", 0.0)
        return milp.digest(gap, {0: at}, prove, cutoff)

    others = [digest(1e-2), digest(prove=False), digest(cutoff=3.0), digest(at=0.0)]
    others += [digest(**{name: 1e-15}) for name in ("low", "more", "over")]
    others += [digest(high=9.5), digest(by=2.0)]
    assert digest() == digest()
    assert len({digest(), *others}) == 1 + len(others)
