"""What is found in a graph's operations is found once."""

from __future__ import annotations

from dataclasses import replace

from rhino.program.data import Graph, Op, Value, once


def chain() -> Graph:
    """b = -a, c = -b."""
    values = [Value(v, (4,), "f32", v - 1) for v in range(3)]
    return Graph(values, [Op(o, "stablehlo.negate", (o,), (o + 1,), None) for o in range(2)], outputs=(2,))


def test_a_fact_is_found_once_for_each_graph() -> None:
    asked: list[int] = []

    @once
    def count(graph: Graph) -> int:
        """How many operations."""
        asked.append(len(graph.ops))
        return len(graph.ops)

    first, second = chain(), chain()
    assert [count(first), count(first), count(second)] == [2, 2, 2]
    assert asked == [2, 2]
    assert count.__doc__ == "How many operations."


def test_facts_are_no_part_of_the_program() -> None:
    known, other = chain(), chain()
    assert known.users() == [[0], [1], []]
    assert known == other
    assert "users" not in repr(known)
    # A changed copy finds its own.
    shorter = replace(known, ops=known.ops[:1])
    assert shorter.users() == [[0], [], []]
