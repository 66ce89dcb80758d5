"""Peak memory of programs small enough to add up by hand: lifetimes, fusion, donation, loops, converted copies."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from hand_graphs import Builder
from search_programs import graph_of, spec

from rhino.dialect.context import make_context, parse_text
from rhino.ir.import_graph import import_graph
from rhino.program import Argument, Graph
from rhino.program.memory import Memory, lifetimes, peak

KIB = 1024
# 16 x 16 f32.
TILE = KIB


def whole(graph: Graph, copies: list[tuple[int, int, int, int]] | None = None) -> Memory:
    """Memory on one device that holds everything."""
    return peak(graph, lifetimes(graph), [v.nbytes for v in graph.values], copies or [])


def chain(dots: int) -> tuple[Builder, int]:
    build = Builder()
    x = build.argument(16, 16)
    for _ in range(dots):
        x = build.dot(x, build.argument(16, 16))
    return build, x


def test_a_chain_holds_two_values_at_a_time() -> None:
    build, last = chain(5)
    found = whole(build.finish(last))
    assert found.argument_bytes == 6 * TILE
    assert found.output_bytes == TILE
    # The operand and the result of a dot; what came before is dead. The last one's result is the output.
    assert found.peak_bytes == (6 + 2) * TILE
    assert found.temp_bytes == TILE
    assert found.alias_bytes == 0


def test_the_only_dot_writes_to_the_output() -> None:
    build, last = chain(1)
    found = whole(build.finish(last))
    assert (found.peak_bytes, found.temp_bytes) == (3 * TILE, 0)


def test_values_kept_for_the_backward_pass_add_up() -> None:
    build = Builder()
    x = build.argument(16, 16)
    kept = [x]
    for _ in range(4):
        kept.append(build.dot(kept[-1], build.argument(16, 16)))
    y = kept[-1]
    for v in reversed(kept[1:-1]):
        y = build.dot(y, v)
    found = whole(build.finish(y))
    # At the first dot back: three kept values, their newest successor, and the new one.
    assert found.peak_bytes == found.argument_bytes + 5 * TILE
    assert {v for v, _ in found.live} == {*kept[1:], kept[-1] + 1}


def test_a_value_inside_a_fusion_costs_nothing_but_keeps_its_input() -> None:
    build = Builder()
    x, w = build.argument(16, 16), build.argument(16, 16)
    a = build.dot(x, w)
    soft = build.same("tanh", build.same("negate", a))
    b = build.dot(x, w)
    c = build.dot(b, w)
    # `soft` is recomputed where it is used: until then its source `a` lives, and nothing else of it.
    total = build.same("add", c, soft)
    found = whole(build.finish(total))
    life = lifetimes(build.graph)
    ends = {v: (first, last) for v, first, last in life.intervals}
    assert soft not in ends
    assert ends[a] == (0, 5)
    # a, b and c at the third dot; or a, c and the output at the end.
    assert found.peak_bytes == found.argument_bytes + 3 * TILE


def test_an_elementwise_result_takes_the_place_of_what_only_it_reads() -> None:
    def build(kept: bool) -> Graph:
        b = Builder()
        x, w = b.argument(16, 16), b.argument(16, 16)
        first = b.dot(x, w)
        second = b.dot(b.same("tanh", b.same("negate", first)), w)
        return b.finish(b.dot(second, w), *([first] if kept else []))

    # XLA's h100 back end has one buffer for `first` and its tanh, and one for the second dot.
    assert whole(build(False)).peak_bytes == (2 + 2) * TILE
    assert whole(build(True)).peak_bytes == (2 + 3) * TILE


def test_donation_saves_the_output() -> None:
    def build(donated: bool) -> Graph:
        b = Builder()
        w, x = b.argument(16, 16), b.argument(16, 16)
        step = b.dot(x, x)
        graph = b.finish(b.same("subtract", w, step), step)
        if donated:
            graph.arguments[0] = Argument(w, "w", donated=True, alias=0)
        return graph

    kept, given = whole(build(False)), whole(build(True))
    assert kept.peak_bytes == (2 + 2) * TILE
    # The step remains; the new value takes the old one's place.
    assert given.peak_bytes == (2 + 1) * TILE
    assert given.alias_bytes == TILE
    for found in (kept, given):
        assert found.peak_bytes == found.argument_bytes + found.output_bytes + found.temp_bytes - found.alias_bytes


def test_an_argument_handed_through_is_copied() -> None:
    build = Builder()
    x = build.argument(16, 16)
    found = whole(build.finish(x))
    assert found.peak_bytes == 2 * TILE


def test_a_loop_updates_in_place_and_its_body_comes_on_top() -> None:
    def loop(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 5, lambda _, v: (v @ w) @ w, x)

    def kept(donate: tuple[int, ...]) -> int:
        return whole(graph_of(loop, spec(16, 16), spec(16, 16), donate=donate)).peak_bytes

    # The carried value is the donated argument, and the second product goes there: the first one is all that is new,
    # however many trips. The counter is 4 bytes.
    assert kept((0,)) == (2 + 1) * TILE + 4
    # An argument that is not donated must not be overwritten: the loop works on a copy, which is the result.
    assert kept(()) == (2 + 2) * TILE + 4


def test_stacks_that_start_with_one_constant_are_two() -> None:
    text = """
      func.func @main(%x: tensor<16x16xf32>) -> (tensor<16x16xf32>, tensor<16x16xf32>) {
        %zero = stablehlo.constant dense<0> : tensor<i32>
        %zeros = stablehlo.constant dense<0.0> : tensor<16x16xf32>
        %r:3 = stablehlo.while(%i = %zero, %a = %zeros, %b = %zeros)
            : tensor<i32>, tensor<16x16xf32>, tensor<16x16xf32>
        cond {
          %three = stablehlo.constant dense<3> : tensor<i32>
          %0 = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %0 : tensor<i1>
        } do {
          %one = stablehlo.constant dense<1> : tensor<i32>
          %0 = stablehlo.add %i, %one : tensor<i32>
          %1 = stablehlo.add %a, %x : tensor<16x16xf32>
          %2 = stablehlo.multiply %b, %x : tensor<16x16xf32>
          stablehlo.return %0, %1, %2 : tensor<i32>, tensor<16x16xf32>, tensor<16x16xf32>
        }
        return %r#1, %r#2 : tensor<16x16xf32>, tensor<16x16xf32>
      }"""
    # The argument and two sums; the counter is 4 bytes.
    assert whole(import_graph(parse_text(text, make_context()))).peak_bytes == 3 * TILE + 4


def test_what_a_loop_reads_lives_until_it_ends() -> None:
    def loop(x: jax.Array) -> jax.Array:
        once = x @ x
        return jax.lax.fori_loop(0, 5, lambda _, v: jnp.tanh(once @ v), x)

    graph = graph_of(loop, spec(16, 16))
    life = lifetimes(graph)
    (while_,) = (op for op in graph.ops if op.name == "stablehlo.while")
    first = next(op for op in graph.ops if op.name == "stablehlo.dot_general")
    (span,) = (entry for entry in life.intervals if entry[0] == first.results[0])
    assert span[2] >= while_.region_end - 1


def test_stacked_results_of_a_scan_are_there_at_once() -> None:
    def stack(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda h, _: (h @ w, h), x, None, length=6)[1]

    found = whole(graph_of(stack, spec(16, 16), spec(16, 16)))
    assert found.output_bytes == 6 * TILE
    # x may not be overwritten, so the loop carries a copy of it, into which every product goes.
    assert found.peak_bytes == (2 + 6 + 1) * TILE + 4


def test_copies_count_from_their_first_to_their_last_reader() -> None:
    build, last = chain(5)
    graph = build.finish(last)
    plain = whole(graph).peak_bytes
    # Alive where two values are: on top.
    assert whole(graph, [(0, 5 * TILE, 2, 3)]).peak_bytes == plain + 5 * TILE
    # Alive at the first dot, where only its result is: a little less.
    assert whole(graph, [(0, 5 * TILE, 0, 0)]).peak_bytes == plain + 4 * TILE
    # Not enough to matter there.
    assert whole(graph, [(0, TILE, 0, 0)]).peak_bytes == plain


def test_the_peak_names_its_op_and_its_largest_tensors() -> None:
    build = Builder()
    x = build.argument(16, 16)
    a = build.dot(x, build.argument(16, 256))
    b = build.dot(a, build.argument(256, 16))
    found = whole(build.finish(build.dot(b, x)))
    assert found.at == 1
    assert found.live == ((a, 16 * TILE), (b, TILE))


def test_divided_values_count_their_part() -> None:
    build, last = chain(2)
    graph = build.finish(last)
    found = peak(graph, lifetimes(graph), [v.nbytes // 4 for v in graph.values], [])
    assert found.peak_bytes == whole(graph).peak_bytes // 4
