"""In which order values lie, by the products around them, and where two orders meet."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from search_programs import graph_of, spec

from rhino.program import Graph
from rhino.program.data import Rule
from rhino.program.fusion import buffers, materialised
from rhino.program.memory import lifetimes
from rhino.program.orders import copied_stacks, moved, orders, transposed

B, S, D = 4, 32, 16
X = spec(B, S, D)


def of(graph: Graph, name: str, nth: int = -1) -> Any:
    return [op for op in graph.ops if op.name == f"stablehlo.{name}"][nth]


def test_a_transposition_moves_nothing() -> None:
    def step(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.tanh(jnp.einsum("bsd,btd->bst", x, y).transpose(0, 2, 1)).sum()

    graph = graph_of(step, X, X)
    known = orders(graph)
    assert known[of(graph, "dot_general").results[0]] == (0, 1, 2)
    assert known[of(graph, "transpose").results[0]] == (0, 2, 1)
    assert known[of(graph, "tanh").results[0]] == (0, 2, 1)
    assert known[graph.arguments[0].value] is None


@pytest.mark.parametrize(
    ("order", "target", "shape", "want"),
    [
        ((0, 1, 2), ((0,), (1,), (2,)), (4, 8, 2), (0, 1, 2)),
        ((2, 0, 1), ((0,), (1,), (2,)), (4, 8, 2), (2, 0, 1)),
        ((0, 2, 1), ((0,), (2,), (1,)), (4, 2, 8), (0, 1, 2)),
        ((0, 1, 2), ((0, 1), (2,)), (32, 2), (0, 1)),
        ((1, 0, 2), ((0, 1), (2,)), (32, 2), None),  # the dimensions that are one now lie apart
        ((0, 1, 2), ((0,), (3,)), (4, 5), None),  # of a dimension nothing is known
        ((0, 1, 2), ((), (0,), (1,), (2,)), (1, 4, 8, 2), (1, 2, 3)),
    ],
)
def test_orders_go_through_a_rule(order: Any, target: Any, shape: Any, want: Any) -> None:
    assert moved(Rule((4, 8, 2, 5), (), ()), ((0,), (1,), (2,)), order, target, shape) == want


def attention(turned: bool) -> Graph:
    """Of which the backward pass sums products of scores, as they are or transposed, and gradients."""

    def step(x: jax.Array, y: jax.Array, g: jax.Array) -> jax.Array:
        scores = jnp.einsum("btd,bsd->bts" if turned else "bsd,btd->bst", y if turned else x, x if turned else y)
        scores = scores.transpose(0, 2, 1) if turned else scores
        weights = jnp.exp(scores)
        more = jnp.einsum("bsd,btd->bst", g, y)
        return jnp.einsum("bst,btd->bsd", weights * (more - (more * weights).sum(-1, keepdims=True)), y)

    return graph_of(step, X, X, X)


def test_what_a_sum_reads_in_another_order_is_written() -> None:
    graph = attention(turned=True)
    found = transposed(graph)
    assert [graph.values[v].shape for v in found] == [(B, S, S)]
    assert all(materialised(graph)[v] for v in found)
    assert transposed(attention(turned=False)) == frozenset()


def scan(turned: bool) -> Graph:
    """Layers of attention whose backward pass reads the scores that were kept."""

    def layer(h: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        k = h @ w
        scores = jnp.einsum("btd,bsd->bts", k, h).transpose(0, 2, 1) if turned else jnp.einsum("bsd,btd->bst", h, k)
        return jnp.einsum("bst,btd->bsd", scores * scores, k), None

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.scan(layer, x, w)[0].sum()

    return graph_of(jax.grad(loss), spec(3, D, D), X)


def test_a_stack_that_is_read_in_another_order_is_there_twice() -> None:
    graph, same = scan(turned=True), scan(turned=False)
    stacks = {graph.ops[loop].ties[position][0] for loop, position in copied_stacks(graph)}
    assert {graph.values[v].shape for v in stacks} == {(3, B, S, S)}
    assert copied_stacks(same) == frozenset()
    loop, position = min(copied_stacks(graph))
    outside, _, inside, _, after = graph.ops[loop].ties[position]
    owner = buffers(graph)
    assert owner[outside] != owner[inside] == owner[after]
    # Until the loop, and from there.
    spans = {v: (first, last) for v, first, last in lifetimes(graph).intervals}
    assert spans[owner[outside]][1] == loop
    assert spans[owner[inside]][0] <= loop
    assert spans[owner[inside]][1] >= graph.ops[loop].region_end - 1
