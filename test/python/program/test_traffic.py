"""What kernels read and write, in closed form: each what it is made of, once."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from hand_graphs import Builder
from search_programs import graph_of, spec

from rhino.program import Graph
from rhino.program.traffic import Fusing, traffic

X, W = 16 * 8 * 4, 8 * 32 * 4


# What an H100 does, and what a CPU does.
GPU, CPU = (
    Fusing(
        rows_fused=True, costly_kept=True, tanh_kept=True, shared_kept=True, siblings_merged=True, products_fuse=True
    ),
    Fusing(),
)
ROWS_APART, APART = replace(GPU, rows_fused=False), replace(GPU, siblings_merged=False)


def moved(graph: Graph, name: str = "", fusing: Fusing = GPU) -> float:
    """Bytes of a program, or of its ops of one kind."""
    found = traffic(graph, fusing)
    return sum(found.nbytes[op.index] for op in graph.ops if not name or op.name == f"stablehlo.{name}")


def kernels(graph: Graph, fusing: Fusing = GPU) -> int:
    """How many kernels a program has."""
    return sum(traffic(graph, fusing).starts)


def test_a_dot_reads_its_operands_and_writes_its_result() -> None:
    build = Builder()
    x, w = build.argument(16, 8), build.argument(8, 32)
    graph = build.finish(build.dot(x, w))
    assert traffic(graph, CPU).nbytes == [X + W + 16 * 32 * 4]


def test_a_fusion_is_counted_at_its_ends() -> None:
    build = Builder()
    x = build.argument(16, 8)
    graph = build.finish(build.same("negate", build.same("tanh", x)))
    # tanh reads the argument; negate writes the result; what passes between them does not leave the chip.
    assert traffic(graph, CPU).nbytes == [X, X]
    assert traffic(graph, CPU).starts == [False, True]


def test_an_operand_used_twice_is_read_once() -> None:
    build = Builder()
    x = build.argument(16, 8)
    assert traffic(build.finish(build.same("multiply", x, x)), CPU).nbytes == [2 * X]
    build = Builder()
    x = build.argument(16, 8)
    graph = build.finish(build.same("add", build.same("tanh", x), build.same("sine", x)))
    # By the first op that reads it.
    assert traffic(graph, CPU).nbytes == [X, 0, X]


def test_what_three_kernels_read_is_read_three_times() -> None:
    """Through a fused value, which each of them makes again. Each is read by a product."""

    def three(x: jax.Array, w: jax.Array) -> tuple[jax.Array, ...]:
        shared = jnp.tanh(x)
        return jnp.sin(shared) @ w, jnp.cos(shared) @ w, jnp.exp(shared) @ w

    graph = graph_of(three, spec(16, 8), spec(8, 32))
    assert moved(graph, "tanh") == 3 * X
    assert moved(graph, "sine") == moved(graph, "cosine") == moved(graph, "exponential") == X
    # The products read each, too.
    assert moved(graph) == 6 * X + 3 * (X + W + 16 * 32 * 4)
    assert kernels(graph) == 6


def softmax(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(x, axis=-1)


def test_a_softmax_of_rows_is_one_kernel() -> None:
    graph = graph_of(softmax, spec(64, 32))
    assert moved(graph) == 2 * 64 * 32 * 4
    assert kernels(graph) == 1


def test_a_softmax_where_rows_are_not_fused_reads_them_three_times() -> None:
    graph = graph_of(softmax, spec(64, 32))
    whole, rows = 64 * 32 * 4, 64 * 4
    # The largest; the sums, which read it; and the quotients, which read both.
    assert moved(graph, fusing=ROWS_APART) == (whole + rows) + (whole + 2 * rows) + (2 * whole + 2 * rows)
    assert kernels(graph, ROWS_APART) == 3


@pytest.mark.parametrize("fusing", [GPU, ROWS_APART])
def test_a_softmax_of_columns_is_three_kernels(fusing: Fusing) -> None:
    graph = graph_of(lambda x: jax.nn.softmax(x, axis=0), spec(64, 32))
    whole, columns = 64 * 32 * 4, 32 * 4
    assert moved(graph, fusing=fusing) == 4 * whole + 5 * columns


def test_rows_that_are_transposed_on_their_way_are_read_three_times() -> None:
    whole, rows = 64 * 32 * 4, 64 * 4
    graph = graph_of(lambda x: softmax(x.T), spec(32, 64))
    assert moved(graph) == 4 * whole + 5 * rows
    # Dimensions of one element are no matter.
    assert moved(graph_of(lambda x: softmax(jnp.swapaxes(x, 0, 1)), spec(64, 1, 32))) == 2 * whole


def test_a_product_is_made_transposed_if_that_is_all() -> None:
    def scores(k: jax.Array, q: jax.Array) -> jax.Array:
        return softmax(jnp.swapaxes(jnp.einsum("bkd,bqd->bkq", k, q), 1, 2))

    graph = graph_of(scores, spec(4, 32, 8), spec(4, 64, 8))
    assert any(op.name == "stablehlo.transpose" for op in graph.ops)
    product, whole = 4 * (32 + 64) * 8 * 4, 4 * 64 * 32 * 4
    assert moved(graph) == product + whole + 2 * whole
    twice = graph_of(lambda k, q: (scores(k, q), jnp.einsum("bkd,bqd->bkq", k, q)), spec(4, 32, 8), spec(4, 64, 8))
    assert moved(twice) > moved(graph)


def test_a_layer_norm_reads_its_rows_twice() -> None:
    """For mean and variance, which are read twice and so made by a kernel of their own, and for what it makes."""

    def norm(x: jax.Array) -> jax.Array:
        mean = x.mean(-1, keepdims=True)
        variance = (x * x).mean(-1, keepdims=True) - mean * mean
        return (x - mean) * jax.lax.rsqrt(variance + 1e-6)

    graph = graph_of(norm, spec(64, 32))
    whole, rows = 64 * 32 * 4, 64 * 4
    assert moved(graph) == (whole + 2 * rows) + (2 * whole + 2 * rows)
    assert kernels(graph) == 2
    # Each of the two sums has a kernel of its own.
    assert moved(graph, fusing=APART) == 2 * (whole + rows) + (2 * whole + 2 * rows)


def gradient(p: jax.Array, g: jax.Array) -> jax.Array:
    """Of a softmax that was kept: what is summed is of two, and goes back to one of them."""
    return p * (g - (p * g).sum(-1, keepdims=True))


def test_a_sum_that_goes_back_to_something_else_is_a_kernel_of_its_own() -> None:
    """Unless the kernel reduces rows anyhow: there the softmax is computed again, with its gradient."""
    whole, rows = 64 * 32 * 4, 64 * 4
    assert moved(graph_of(gradient, spec(64, 32), spec(64, 32))) == (2 * whole + rows) + (3 * whole + rows)
    assert moved(graph_of(lambda x, g: gradient(softmax(x), g), spec(64, 32), spec(64, 32))) == 3 * whole
    # Summed and gone back to are both made of one value.
    alike = graph_of(lambda x: jnp.sin(x) / jnp.tanh(x).sum(-1, keepdims=True), spec(64, 32))
    assert moved(alike) == 2 * whole


def test_what_is_made_of_rows_is_stacked_by_another_kernel() -> None:
    def keep(stack: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice(stack, softmax(x)[None], (2, 0, 0))

    whole = 64 * 32 * 4
    graph = graph_of(keep, spec(4, 64, 32), spec(64, 32), donate=(0,))
    assert (kernels(graph), moved(graph)) == (2, 4 * whole)
    apart = graph_of(lambda s, x: keep(s, x.T), spec(4, 64, 32), spec(32, 64), donate=(0,))
    assert kernels(apart) == 3  # two for its sums, and what they are used for in the update


def test_a_kernel_of_rows_makes_nothing_else() -> None:
    graph = graph_of(lambda x, y: (softmax(x), jnp.tanh(x) * y), spec(64, 32), spec(64, 32))
    whole = 64 * 32 * 4
    assert (kernels(graph), moved(graph)) == (2, 2 * whole + 3 * whole)
    assert kernels(graph_of(lambda x, y: (jnp.sin(x), jnp.tanh(x) * y), spec(64, 32), spec(64, 32))) == 1


def adam(p: jax.Array, m: jax.Array, v: jax.Array, g: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return p - 0.001 * m / (jnp.sqrt(v) + 1e-8), m, v


def test_an_update_of_adam_is_one_kernel() -> None:
    graph = graph_of(adam, *[spec(16, 8)] * 4)
    assert moved(graph) == 7 * X
    assert kernels(graph) == 1
    # Three that read two, two, and three tensors.
    assert moved(graph, fusing=APART) == 10 * X
    assert kernels(graph, APART) == 3


def test_what_needs_a_sum_of_all_waits_for_it() -> None:
    """A clipped gradient is read by its norm, and again by the update."""

    def clipped(p: jax.Array, g: jax.Array) -> jax.Array:
        return p - g / jnp.sqrt((g * g).sum())

    graph = graph_of(clipped, spec(16, 8), spec(16, 8))
    assert kernels(graph) == 2
    assert moved(graph) == (X + 4) + 3 * X


def test_a_sum_of_what_a_kernel_makes_reads_nothing() -> None:
    graph = graph_of(lambda x: (jnp.tanh(x), jnp.tanh(x).sum(0)), spec(16, 8))
    assert moved(graph) == 2 * X + 8 * 4
    assert kernels(graph) == 1


def test_what_only_products_read_stays_apart() -> None:
    """Two gradients of a gated layer share what they read; XLA's kernels for products make them."""

    def gated(x: jax.Array, y: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        return (jnp.tanh(x) * y) @ w, (jnp.sin(x) * y) @ w

    graph = graph_of(gated, spec(16, 8), spec(16, 8), spec(8, 32))
    assert kernels(graph) == 2 + 2
    assert kernels(graph, replace(GPU, products_fuse=False)) == 1 + 2
    together = graph_of(lambda x, y: (jnp.tanh(x) * y, jnp.sin(x) * y), spec(16, 8), spec(16, 8))
    assert kernels(together) == 1
    assert moved(together) == 4 * X


def test_a_tanh_that_several_read_is_written_where_one_is_summed() -> None:
    def gelu(x: jax.Array, g: jax.Array, w: jax.Array) -> tuple[jax.Array, ...]:
        t = jnp.tanh(x)
        gradient = g * (1 - t * t)
        return (x * (1 + t)) @ w, gradient @ w, gradient.sum(0)

    graph = graph_of(gelu, spec(16, 8), spec(16, 8), spec(8, 32))
    products, tanh = 2 * (X + W + 16 * 32 * 4), 2 * X
    # Of x and it one result; of g and it the other, with its sum.
    assert moved(graph) == products + tanh + 3 * X + 2 * X + 8 * 4
    assert moved(graph, fusing=replace(GPU, costly_kept=False)) == products + 2 * X + 3 * X + 8 * 4
    alone = graph_of(lambda x, g, w: gelu(x, g, w)[:2], spec(16, 8), spec(16, 8), spec(8, 32))
    assert moved(alone) == products + 2 * X + 3 * X


def test_an_update_in_place_is_a_kernel_of_its_own() -> None:
    """It reads what another kernel has made, and does not make it again."""

    def keep(stack: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        made = jnp.tanh(x)
        return jax.lax.dynamic_update_slice(stack, made[None], (2, 0, 0)), made

    graph = graph_of(keep, spec(4, 16, 8), spec(16, 8), donate=(0,))
    assert kernels(graph) == 2
    assert moved(graph) == 2 * X + 2 * X


def test_a_fill_that_an_update_starts_with_is_read_by_what_follows() -> None:
    """The gradient of a lookup is added to zeros, and compared with zeros where Adagrad divides."""

    def update(at: jax.Array, rows: jax.Array, accumulator: jax.Array) -> tuple[jax.Array, jax.Array]:
        gradient = jnp.zeros((64, 8)).at[at].add(rows)
        summed = accumulator + gradient * gradient
        return jnp.where(summed > 0, gradient * jax.lax.rsqrt(summed), 0.0), summed

    graph = graph_of(update, jax.ShapeDtypeStruct((4,), jnp.int32), spec(4, 8), spec(64, 8))
    table, reads = 64 * 8 * 4, replace(GPU, fills_read=True)
    assert moved(graph, fusing=reads) == moved(graph) + 2 * table
    assert kernels(graph, reads) == kernels(graph) + 1
    # What does not follow from the update makes the fill itself.
    apart = graph_of(
        lambda at, rows, x: (jnp.zeros((64, 8)).at[at].add(rows), jnp.maximum(x, 0.0)),
        jax.ShapeDtypeStruct((4,), jnp.int32), spec(4, 8), spec(64, 8),
    )  # fmt: skip
    assert moved(apart, fusing=reads) == moved(apart)


def test_results_that_follow_from_each_other_by_a_product_are_two_kernels() -> None:
    def chain(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        first = jnp.tanh(x)
        return first, jnp.sin(x) * (first @ w)

    assert kernels(graph_of(chain, spec(16, 8), spec(8, 8))) == 3


def test_views_move_nothing() -> None:
    graph = graph_of(lambda x, w: (x @ w).reshape(4, 4, 8) @ w, spec(16, 8), spec(8, 8))
    assert moved(graph, "reshape") == 0
    assert kernels(graph) == 2


IDS = spec(4, dtype=jnp.int32)
PARTIAL_ACCESS = {
    # Reads and writes the slice, not the whole.
    "dynamic_slice": (
        lambda x, i: jax.lax.dynamic_slice(x, (i, 0), (1, 8)),
        (spec(64, 8), spec(dtype=jnp.int32)),
        2 * 32,
    ),
    "dynamic_update_slice": (
        lambda x, y: jax.lax.dynamic_update_slice(x, y, (2, 0)),
        (spec(64, 8), spec(1, 8)),
        2 * 32,
    ),
    # Reads the rows, and writes them.
    "gather": (lambda t, i: t.at[i].get(mode="clip"), (spec(64, 8), IDS), 2 * 4 * 32),
    # Reads rows and updates, writes rows.
    "scatter": (lambda t, i, u: t.at[i].add(u, mode="drop"), (spec(64, 8), IDS, spec(4, 8)), 3 * 4 * 32),
}


@pytest.mark.parametrize("name", PARTIAL_ACCESS)
def test_partial_access(name: str) -> None:
    function, arguments, expected = PARTIAL_ACCESS[name]
    assert moved(graph_of(function, *arguments), name) == expected


def test_slices_are_read_as_parts() -> None:
    graph = graph_of(lambda x: jnp.tanh(x[:4]) + jnp.sin(x[4:8]), spec(16, 8))
    assert moved(graph) == 2 * X / 4 + X / 4
    whole = graph_of(lambda x: jnp.tanh(x[:12]) + jnp.sin(x[4:]), spec(16, 8))
    assert moved(whole) == X + 3 * X / 4


def test_loops_and_constants_move_nothing_themselves() -> None:
    graph = graph_of(lambda x: jax.lax.fori_loop(0, 5, lambda _, v: jnp.tanh(v), x), spec(16, 8))
    assert moved(graph, "while") == moved(graph, "constant") == 0
    assert moved(graph) == moved(graph, "tanh") == 2 * X


def test_where_products_are_wide_so_is_what_they_read_and_make() -> None:
    """A layer with a bias in bfloat16, its weight kept in float32: on V100s products are float32."""

    def layer(x: jax.Array, w: jax.Array, b: jax.Array) -> jax.Array:
        hidden = jnp.tanh(x).reshape(2, 8, 8)  # read through a view
        product = hidden.reshape(16, 8) @ w.astype(jnp.bfloat16)
        return jnp.maximum(product + b, 0)

    narrow, wide = jnp.bfloat16, replace(CPU, products_wide=True)
    graph = graph_of(layer, spec(16, 8, dtype=narrow), spec(8, 32), spec(32, dtype=narrow))
    x, w, y, b = 16 * 8 * 2, 8 * 32 * 4, 16 * 32 * 2, 32 * 2
    # The weight is converted as ever; what the product makes is read as twice the bytes, and written as before.
    assert moved(graph, "convert", CPU) == moved(graph, "convert", wide) == 1.5 * w
    light = {op.name for op in graph.ops} - {"stablehlo.dot_general"}
    added = [sum(moved(graph, name.removeprefix("stablehlo."), f) for name in light) for f in (CPU, wide)]
    assert added == [2 * x + 1.5 * w + 2 * y + b, 3 * x + 1.5 * w + 3 * y + b]
