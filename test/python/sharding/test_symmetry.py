"""Repeated structure is found whatever its number, and what differs is kept apart."""

from __future__ import annotations

import pytest
from hand_graphs import Builder
from search_programs import adam_step, graph_of

from rhino.program import Graph
from rhino.sharding.cones import build_problem
from rhino.sharding.symmetry import Quotient, tie_repeats


def residual(layers: int) -> Graph:
    build = Builder()
    x = build.argument(16, 64)
    for _ in range(layers):
        h = build.same("tanh", build.dot(x, build.argument(64, 256)))
        x = build.same("add", x, build.dot(h, build.argument(256, 64)))
    return build.finish(x)


def quotient(graph: Graph) -> Quotient:
    return tie_repeats(build_problem(graph))


@pytest.mark.parametrize("layers", [2, 4, 8, 32])
def test_layers_around_a_residual_stream_are_one(layers: int) -> None:
    # Per layer: two weights, two dots and the hidden cone; and one stream for all.
    found = quotient(residual(layers))
    assert sorted(found.counts) == [1] + [layers] * 5
    # What a dot reads (two values) and what it makes, twice.
    assert [count for _, count in found.transfers] == [layers] * 6


def test_an_equitable_partition() -> None:
    # Equal decisions touch equal transfers: what the theorem behind tying asks for.
    function, arguments = adam_step(6, 64, 32)
    problem = build_problem(graph_of(function, *arguments, donate=(0,)))
    found = tie_repeats(problem)
    touching: list[list[tuple[int, int, tuple[int, ...]]]] = [[] for _ in problem.nodes]
    for t in problem.transfers:
        for side, ends in enumerate((t.sources, t.targets)):
            for end in ends:
                if end.node >= 0:
                    touching[end.node].append((found.tied[t.index], side, end.view))
    by_class: dict[int, list[tuple[int, int, tuple[int, ...]]]] = {}
    for n, k in enumerate(found.klass):
        assert by_class.setdefault(k, sorted(touching[n])) == sorted(touching[n])


def in_groups(layers: int) -> Graph:
    """Layers around a stream whose rows they take in groups of two."""
    build = Builder()
    x = build.argument(16, 64)
    for _ in range(layers):
        h = build.ungrouped(build.same("tanh", build.in_groups(x, 2)))
        h = build.dot(build.same("tanh", build.dot(h, build.argument(64, 256))), build.argument(256, 64))
        x = build.same("add", x, h)
    return build.finish(x)


def test_layers_that_view_their_input_alike_are_one() -> None:
    # A group's rows belong to no dimension of the stream, which all layers share: they too are the same in all.
    problem = build_problem(in_groups(8))
    stream = problem.nodes[problem.node_of[problem.graph.outputs[0]]]
    assert stream.limits == (8, 64, 2)
    assert sorted(tie_repeats(problem).counts) == [1] + [8] * 5


def test_a_layer_of_another_width_is_its_own() -> None:
    build = Builder()
    x = build.argument(16, 64)
    for width in (256, 256, 128):
        h = build.same("tanh", build.dot(x, build.argument(64, width)))
        x = build.same("add", x, build.dot(h, build.argument(width, 64)))
    assert sorted(quotient(build.finish(x)).counts) == [1] * 6 + [2] * 5


def test_a_given_sharding_sets_a_layer_apart() -> None:
    graph = residual(4)
    graph.pins[1] = ("argument a1", ((), ("x",)))
    assert sum(n == 1 for n in quotient(graph).counts) == 6
    # The same sharding on all of them does not.
    for argument in graph.arguments[1::2]:
        graph.pins[argument.value] = (argument.name, ((), ("x",)))
    assert sum(n == 1 for n in quotient(graph).counts) == 1


def test_without_a_residual_stream_the_ends_of_a_chain_differ() -> None:
    # The first layer's input and the last one's output have no like; refinement works inwards from them.
    build = Builder()
    x = build.argument(16, 64)
    for _ in range(6):
        x = build.same("tanh", build.dot(x, build.argument(64, 64)))
    assert max(quotient(build.finish(x)).counts) < 6
