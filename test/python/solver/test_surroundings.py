"""Neighbourhoods begin where there is slack, keep apart, and reach everything; memory's share of what is too much."""

import numpy as np
import pytest

from rhino.solver.model import Model
from rhino.solver.problem import Alternatives, ChoiceProblem, PairCosts
from rhino.solver.reduce import reduce_problem
from rhino.solver.surroundings import AT_ONCE, Surroundings, blame


def ring(nodes: int, limit: float | None = None) -> Model:
    """Decisions in a ring, of two choices each: 0 costs nothing and takes 2 of memory, 1 costs 1 and takes 1."""
    alternatives = tuple(
        Alternatives(np.array([0.0, 1.0]), np.array([2.0, 1.0]), node, node + 2) for node in range(nodes)
    )
    unlike = np.array([[0.0, 3.0], [5.0, 0.0]])
    pairs = tuple(PairCosts(node, (node + 1) % nodes, unlike) for node in range(nodes))
    return Model.of(reduce_problem(ChoiceProblem(alternatives, pairs, limit)))


@pytest.mark.parametrize("cells", [12, 60, 10_000])
def test_a_round_reaches_every_decision_and_no_pair_joins_a_batch(cells: int) -> None:
    model = ring(40)
    weights = np.ones(40)
    seen: set[int] = set()
    for batch in Surroundings(model).batches(weights, cells):
        assert 1 <= len(batch) <= AT_ONCE
        assert not seen.issuperset(node for near in batch for node in near)
        seen.update(node for near in batch for node in near)
        for near in batch:
            inner = [pair for pair in model.pairs if pair.left in near and pair.right in near]
            assert len(near) * 2 + sum(pair.costs.size for pair in inner) <= cells
            others = {node for other in batch if other is not near for node in other}
            assert not any(
                (pair.left in near and pair.right in others) or (pair.right in near and pair.left in others)
                for pair in model.pairs
            )
    assert seen == set(range(40))


def test_where_the_slack_is_comes_first_and_the_rest_is_left_out() -> None:
    model = ring(40)
    weights = np.zeros(40)
    weights[[7, 8, 9]] = 1.0
    (only,) = Surroundings(model).batches(weights, 30)
    assert {7, 8, 9} <= {node for near in only for node in near}


def test_rounds_differ_and_two_searches_do_not() -> None:
    model = ring(40)
    one, other = Surroundings(model), Surroundings(model)
    rounds = [list(one.batches(np.ones(40), 30)) for _ in range(2)]
    assert rounds == [list(other.batches(np.ones(40), 30)) for _ in range(2)]
    assert rounds[0] != rounds[1]


def test_blame_is_of_what_is_live_where_there_is_too_much() -> None:
    model = ring(6, limit=3.0)
    choices = np.zeros(6, dtype=np.intp)
    over = np.zeros(len(model.room))
    over[2] = 1.0
    # A use counts by what it takes above its least.
    expected = [float(f <= 2 < n) for f, n in zip(model.first, model.last, strict=True)]
    assert blame(model, choices, over).tolist() == [expected[use] for own in model.uses_of for use in own]
    assert blame(model, choices + 1, over).tolist() == [0.0] * 6
