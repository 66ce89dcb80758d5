"""Problems that were made smaller have the same optimum, against brute force; files come back as they were written."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhino.errors import RhinoError
from rhino.solver.contest import read_contest, write_contest
from rhino.solver.problem import FORBIDDEN, Alternatives, ChoiceProblem, PairCosts
from rhino.solver.reduce import reduce_problem

COSTS = st.sampled_from([0.0, 1.0, 2.0, 5.0, FORBIDDEN, FORBIDDEN])


@st.composite
def problems(draw: st.DrawFn) -> ChoiceProblem:
    counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))

    def numbers(count: int, values: st.SearchStrategy[float]) -> np.ndarray:
        return np.array(draw(st.lists(values, min_size=count, max_size=count)))

    nodes = []
    for count in counts:
        start = draw(st.integers(0, 4))
        usages = numbers(count, st.sampled_from([0.0, 1.0, 3.0]))
        nodes.append(Alternatives(numbers(count, COSTS), usages, start, start + draw(st.integers(-1, 3))))
    side = st.integers(0, len(counts) - 1)
    pairs = []
    for left, right in draw(st.lists(st.tuples(side, side), max_size=7)):
        shape = counts[left], counts[right]
        pairs.append(PairCosts(left, right, numbers(shape[0] * shape[1], COSTS).reshape(shape)))
    return ChoiceProblem(tuple(nodes), tuple(pairs), draw(st.sampled_from([None, 2.0, 6.0])))


def everything(counts: list[int]) -> itertools.product:
    return itertools.product(*map(range, counts))


@settings(max_examples=200, deadline=None)
@given(problems())
def test_what_is_allowed_costs_and_uses_the_same_after_it_was_reduced(problem: ChoiceProblem) -> None:
    allowed = {
        choices: (problem.cost(choices), problem.peak(choices))
        for choices in everything([len(node.costs) for node in problem.nodes])
        if problem.cost(choices) < FORBIDDEN
    }
    try:
        small = reduce_problem(problem)
    except RhinoError:
        assert not allowed
        return
    found = {}
    for choices in everything([len(cluster.costs) for cluster in small.clusters]):
        cost = sum(cluster.costs[c] for cluster, c in zip(small.clusters, choices, strict=True))
        cost += sum(table[choices[left], choices[right]] for left, right, table in small.pairs)
        if np.isfinite(cost):
            used = [
                sum(
                    usages[c]
                    for cluster, c in zip(small.clusters, choices, strict=True)
                    for (start, end), usages in cluster.spans.items()
                    if start <= time < end
                )
                for time in range(10)
            ]
            found[tuple(small.expand(choices))] = (cost, max(used))
    assert found == allowed


@settings(max_examples=50, deadline=None)
@given(problem=problems(), gzipped=st.booleans())
def test_what_is_written_is_read_back(
    problem: ChoiceProblem, gzipped: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("contest")
    path, again = (folder / (name + (".json.gz" if gzipped else ".json")) for name in ("one", "two"))
    write_contest(problem, path)
    read = read_contest(path)
    write_contest(read, again)
    assert path.read_bytes() == again.read_bytes()
    assert [pair.costs.tolist() for pair in read.pairs] == [pair.costs.tolist() for pair in problem.pairs]
    assert read.limit == problem.limit


def document() -> dict:
    nodes = {"intervals": [[0, 2], [1, 3]], "costs": [[1, 2], [3]], "usages": [[1, 1], [2]]}
    return {"problem": {"name": "x", "nodes": nodes, "edges": {"nodes": [[0, 1]], "costs": [[5, 6]]}, "usage_limit": 9}}


def test_usages_and_the_limit_may_be_missing(tmp_path: Path) -> None:
    whole = document()
    del whole["problem"]["nodes"]["usages"], whole["problem"]["usage_limit"]
    (tmp_path / "x.json").write_text(json.dumps(whole))
    problem = read_contest(tmp_path / "x.json")
    assert problem.limit is None
    assert problem.peak([0, 0]) == 0
    assert problem.cost([1, 0]) == 11


@pytest.mark.parametrize(
    ("part", "key", "value", "text"),
    [
        ("nodes", "costs", [[1, 2], []], "node 1 has no choice"),
        ("nodes", "costs", [[1, "a"], [3]], "costs of node 0 are not all numbers"),
        ("nodes", "costs", [[1, -2], [3]], "costs of node 0 have -2, below zero"),
        ("nodes", "usages", [[1], [2]], "node 0 has 2 costs and 1 usages"),
        ("nodes", "intervals", [[0, 2]], '"intervals" has 1 rows, not 2'),
        ("nodes", "intervals", [[0, 2], 3], "interval of node 1 is 3, not two whole numbers"),
        ("edges", "nodes", [[0, 7]], "edge 0 joins nodes 0 and 7 of 2"),
        ("edges", "costs", [[5]], "edge 0 has 1 costs; 2 x 1 choices need a cost each"),
    ],
)
def test_bad_files_are_refused_with_their_name(tmp_path: Path, part: str, key: str, value: object, text: str) -> None:
    whole = document()
    whole["problem"][part][key] = value
    path = tmp_path / "x.json"
    path.write_text(json.dumps(whole))
    with pytest.raises(RhinoError) as caught:
        read_contest(path)
    assert str(caught.value).startswith(str(path))
    assert text in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"{", b"\x1f\x8bno", b"[]"])
def test_what_is_no_problem_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.json").write_bytes(data)
    with pytest.raises(RhinoError, match=r"x\.json"):
        read_contest(tmp_path / "x.json")
