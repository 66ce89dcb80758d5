"""Which values XLA writes to memory, and which share a buffer."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from hand_graphs import Builder
from search_programs import graph_of, spec

from rhino.program import Graph
from rhino.program.fusible import is_fusible
from rhino.program.fusion import buffers, materialised


def result(graph: Graph, name: str) -> int:
    """The first result of the only op of a kind."""
    (op,) = (op for op in graph.ops if op.name == f"stablehlo.{name}")
    return op.results[0]


def test_element_wise_values_live_in_fusions() -> None:
    build = Builder()
    x, w = build.argument(16, 8), build.argument(8, 8)
    a = build.same("tanh", x)
    b = build.same("negate", a)
    c = build.dot(b, w)
    d = build.same("exponential", c)
    e = build.same("negate", d)
    graph = build.finish(e)
    real = materialised(graph)
    # Arguments, what a dot reads, what a dot makes, and what is returned.
    assert [v for v in range(7) if real[v]] == [x, w, b, c, e]
    assert [is_fusible(op) for op in graph.ops] == [True, True, False, True, True]


def test_a_reduction_fuses_its_input_but_not_its_result() -> None:
    build = Builder()
    x = build.argument(16, 8)
    square = build.same("multiply", x, x)
    total = build.reduce(square, 0)
    graph = build.finish(build.same("tanh", total))
    real = materialised(graph)
    assert not real[square]
    assert real[total]


def test_splat_constants_take_no_memory() -> None:
    graph = graph_of(lambda x: x @ jnp.ones((8, 8)), spec(16, 8))
    real = materialised(graph)
    # The dot reads its broadcast, which is therefore written; the scalar it is made of is not.
    assert not real[result(graph, "constant")]
    assert real[result(graph, "broadcast_in_dim")]


def loop(x: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, 5, lambda _, v: jnp.tanh(v), x)


def test_what_a_loop_carries_is_one_buffer() -> None:
    for donate in ((0,), ()):
        graph = graph_of(loop, spec(16, 8), donate=donate)
        owner, real = buffers(graph), materialised(graph)
        (while_,) = (op for op in graph.ops if op.name == "stablehlo.while")
        tie = next(tie for tie in while_.ties if graph.values[tie[0]].shape == (16, 8))
        assert len({owner[v] for v in tie[1:]}) == 1
        assert all(real[v] for v in tie)
        # The argument's own, if the caller gave it away.
        assert (owner[tie[1]] == graph.arguments[0].value) is bool(donate)


def test_what_a_loop_only_reads_stays_where_it_is() -> None:
    graph = graph_of(scan, spec(3, 8, 8), spec(16, 8))
    owner = buffers(graph)
    (loop,) = (op for op in graph.ops if op.name == "stablehlo.while")
    tie = next(tie for tie in loop.ties if graph.values[tie[0]].shape == (3, 8, 8))
    assert {owner[v] for v in tie} == {graph.arguments[0].value}


def scan(ws: jax.Array, x: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)[0]


@pytest.mark.parametrize("donate", [(0,), ()])
def test_updates_in_place_share_the_buffer_of_what_may_be_overwritten(donate: tuple[int, ...]) -> None:
    graph = graph_of(lambda x, y: jax.lax.dynamic_update_slice(x, y, (2, 0)), spec(16, 8), spec(1, 8), donate=donate)
    owner = buffers(graph)
    shares = owner[result(graph, "dynamic_update_slice")] == graph.arguments[0].value
    assert shares is bool(donate)


def test_gradients_by_labels_are_added_where_they_are_summed() -> None:
    def step(x: jax.Array, y: jax.Array) -> jax.Array:
        def loss(x: jax.Array) -> jax.Array:
            logits = x @ y
            places = jnp.arange(logits.shape[0])
            picked = logits[places, places] + logits.T[places, places]
            return (jax.nn.logsumexp(logits, 0) + jax.nn.logsumexp(logits, 1) - picked).mean()

        return jax.grad(loss)(x)

    graph = graph_of(step, spec(64, 8), spec(8, 64))
    real = materialised(graph)
    squares = [v.index for v in graph.values if v.shape == (64, 64) and real[v.index]]
    scatters = [op for op in graph.ops if op.name == "stablehlo.scatter"]
    # The logits, and what both dots read: each scatter works there, not on zeros of its own.
    assert len(scatters) == 2
    assert not any(real[op.results[0]] or real[op.operands[0]] for op in scatters)
    assert len(squares) == 2


def test_a_scatter_that_is_read_twice_is_a_value_of_its_own() -> None:
    def twice(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        made = jnp.zeros((16, 8)).at[jnp.arange(4)].add(x)
        return made + y, made * y

    graph = graph_of(twice, spec(4, 8), spec(16, 8))
    assert materialised(graph)[result(graph, "scatter")]
