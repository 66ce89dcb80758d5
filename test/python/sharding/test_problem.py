"""The decomposition into decisions: what shares one, what decides alone, and what travels between them."""

from __future__ import annotations

from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hand_graphs import Builder
from search_programs import graph_of, spec

from rhino.machine import Cluster
from rhino.program import Graph
from rhino.sharding.cones import build_problem
from rhino.sharding.costs import Costs
from rhino.sharding.layout import Layout
from rhino.sharding.leaving import executions, late_seconds
from rhino.sharding.problem import PARTIAL, REPLICATED, LayoutTransfer, Node, Problem, product_of, ways_of
from rhino.sharding.symmetry import tie_repeats
from rhino.sharding.time_model import ProgramTimes, TimeModel

R, P = REPLICATED, PARTIAL


def of(graph: Graph, kind: str) -> tuple[Problem, list[Node]]:
    problem = build_problem(graph)
    return problem, [node for node in problem.nodes if node.kind == kind]


def transfer(problem: Problem, value: int, kind: str) -> LayoutTransfer:
    (found,) = (t for t in problem.transfers if t.value == value and t.kind == kind)
    return found


def test_element_wise_ops_share_one_decision() -> None:
    build = Builder()
    x, y = build.argument(16, 8), build.argument(16, 8)
    total = build.same("add", build.same("tanh", x), y)
    problem, cones = of(build.finish(total), "cone")
    assert [node.members for node in cones] == [[x, y, 2, total]]
    assert cones[0].limits == (16, 8)
    assert not problem.transfers


def test_a_dot_decides_for_itself() -> None:
    build = Builder()
    x, w = build.argument(16, 8), build.argument(8, 32)
    y = build.dot(x, w)
    problem, (dot,) = of(build.finish(y), "op")
    assert problem.node_of[x] != problem.node_of[w] != problem.node_of[y]
    # One state per factor: rows, columns, and the contracted dimension.
    assert dot.limits == (16, 32, 8)
    assert [t.targets[0].view for t in problem.transfers if t.kind == "use"] == [(R, 0, R, 1), (R, R, 1, 0)]
    assert transfer(problem, y, "define").sources[0].view == (R, 0, 1, P)


def test_one_value_read_twice_is_one_transfer() -> None:
    build = Builder()
    x, w, v = build.argument(16, 8), build.argument(8, 32), build.argument(8, 4)
    problem = build_problem(build.finish(build.dot(x, w), build.dot(x, v)))
    assert len(transfer(problem, x, "use").targets) == 2


def test_partial_sums_meet_before_they_are_reduced() -> None:
    build = Builder()
    x, w = build.argument(16, 8), [build.argument(8, 4) for _ in range(3)]
    a, b, c = (build.dot(x, v) for v in w)
    total = build.same("add", build.same("add", a, b), c)
    problem = build_problem(build.finish(total))
    (define,) = (t for t in problem.transfers if t.kind == "define")
    assert len(define.sources) == 3


def test_a_sum_that_is_returned_too_is_reduced_on_its_own() -> None:
    build = Builder()
    x, w = build.argument(16, 8), [build.argument(8, 4) for _ in range(2)]
    a, b = (build.dot(x, v) for v in w)
    problem = build_problem(build.finish(a, build.same("add", a, b)))
    assert [len(t.sources) for t in problem.transfers if t.kind == "define"] == [1, 1]


def test_a_transpose_moves_dimensions() -> None:
    build = Builder()
    x = build.argument(16, 8)
    y = build.transpose(x)
    problem = build_problem(build.finish(y))
    assert problem.node_of[x] == problem.node_of[y]
    assert problem.classes[y] == problem.classes[x][::-1]
    assert problem.view(x) == (R, 0, 1)
    assert problem.view(y) == (R, 1, 0)


def test_a_matrix_added_to_its_transpose_is_split_along_its_first_dimension_only() -> None:
    build = Builder()
    x = build.argument(8, 8)
    problem, (cone,) = of(build.finish(build.same("add", x, build.transpose(x))), "cone")
    assert problem.classes[x] == (0, -1)
    assert cone.limits == (8,)


def test_shards_must_divide_every_tensor_of_a_cone() -> None:
    # A reshape 4 x 6 -> 24 keeps the major factor: parts of 24 must be parts of 4.
    graph = graph_of(lambda x: x.reshape(24) * 2, spec(4, 6))
    _, (cone,) = of(graph, "cone")
    assert 4 in cone.limits


def test_a_dimension_that_must_stay_whole_is_split_in_none_of_its_cone() -> None:
    b = Builder()
    y = b.same("stablehlo.tanh", b.argument(8, 4))
    problem = build_problem(b.finish(y), [(y, 0)])
    assert [problem.classes[v] for v in range(2)] == [(-1, 0)] * 2


def test_a_broadcast_vector_follows_its_matrix() -> None:
    build = Builder()
    x, b = build.argument(16, 8), build.argument(8)
    wide = build.broadcast(b, (16, 8), 1)
    problem = build_problem(build.finish(build.same("add", x, wide)))
    assert problem.node_of[b] != problem.node_of[x] == problem.node_of[wide]
    use = transfer(problem, b, "use")
    # Rows split: the vector is needed whole; columns split: its part.
    assert use.targets[0].view == (R, R, 0)


def test_a_reduction_is_partial_where_its_dimension_was_split() -> None:
    build = Builder()
    x = build.argument(16, 8)
    total = build.reduce(x, 0)
    problem = build_problem(build.finish(total))
    define = transfer(problem, total, "define")
    assert define.sources[0].node == problem.node_of[x]
    assert define.sources[0].view == (R, P, 0)
    assert define.targets[0].view == (R, 0)


def test_constants_and_what_is_made_of_them_are_free() -> None:
    graph = graph_of(lambda x: x + jnp.arange(8.0) * 2, spec(8))
    problem = build_problem(graph)
    free = [v.index for v in graph.values if v.shape and problem.node_of[v.index] < 0]
    made = [graph.ops[graph.values[v].producer].name for v in free]
    assert "stablehlo.iota" in made
    assert "stablehlo.multiply" in made
    # They take the layout of what reads them.
    read = problem.free_reads[graph.ops[-1].operands[1]]
    assert [end.node for end in read] == [problem.node_of[graph.outputs[0]]]


def test_a_gather_splits_by_indices_or_columns_or_masks() -> None:
    graph = graph_of(lambda table, ids: table[ids], spec(64, 8), spec(4, 16, dtype=jnp.int32))
    problem, (gather,) = of(graph, "op")
    assert graph.ops[gather.ops[0]].name == "stablehlo.gather"
    assert gather.limits == (4, 16, 8, 64)
    table = transfer(problem, graph.arguments[0].value, "use")
    assert table.targets[0].view == (R, R, R, 1, 0)
    # The last state: rows of the table are split, each device looks up its own, and the results are summed.
    assert transfer(problem, graph.outputs[0], "define").sources[0].view == (R, 0, 1, 2, P)


def test_a_scatter_adds_gradients_to_a_table() -> None:
    def gradient(table: jax.Array, ids: jax.Array) -> jax.Array:
        return jax.grad(lambda t: jnp.tanh(t[ids]).sum())(table)

    graph = graph_of(gradient, spec(64, 8), spec(16, dtype=jnp.int32))
    problem, heavy = of(graph, "op")
    (scatter,) = (node for node in heavy if graph.ops[node.ops[0]].name == "stablehlo.scatter")
    define = transfer(problem, graph.ops[scatter.ops[0]].results[0], "define")
    # Data parallelism: updates split, every device has a partial table.
    assert P in define.sources[0].view


def test_what_a_loop_carries_is_one_decision() -> None:
    graph = graph_of(scan, spec(3, 8, 8), spec(16, 8))
    problem = build_problem(graph)
    (loop,) = (op for op in graph.ops if op.name == "stablehlo.while")
    for tie in loop.ties:
        assert len({problem.node_of[v] for v in tie}) == 1
    # The body's transfers count every iteration.
    assert {t.trips for t in problem.transfers} == {3}
    # The stacked weights cannot stay split by layers: the body slices that dimension.
    weights = problem.node_of[graph.arguments[0].value]
    assert [graph.ops[op].name for _, _, op in problem.losses[weights]] == ["stablehlo.dynamic_slice"]


def scan(ws: jax.Array, x: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)[0]


def test_a_donated_argument_and_its_result_are_one_decision() -> None:
    graph = graph_of(lambda w, x: w - x.T @ x, spec(8, 8), spec(16, 8), donate=(0,))
    problem = build_problem(graph)
    assert problem.node_of[graph.arguments[0].value] == problem.node_of[graph.outputs[0]]


def test_donation_alone_joins_what_nothing_else_does() -> None:
    def swap(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.tanh(b), jnp.sin(a)

    for donate, same in (((0, 1), True), ((), False)):
        graph = graph_of(swap, spec(8, 8), spec(8, 8), donate=donate)
        problem = build_problem(graph)
        assert (problem.node_of[0] == problem.node_of[1]) is same


def test_branches_leave_their_result_in_one_layout() -> None:
    graph = graph_of(lambda i, x: jax.lax.cond(i > 0, jnp.tanh, jnp.negative, x), spec(dtype=jnp.int32), spec(16, 8))
    problem = build_problem(graph)
    (case,) = (op for op in graph.ops if op.name == "stablehlo.case")
    assert len({problem.node_of[v] for tie in case.ties for v in tie}) == 1


def test_a_slice_loses_the_dimension_it_cuts() -> None:
    graph = graph_of(lambda x: x[:, 2:6] * 2, spec(16, 8))
    problem, (cone,) = of(graph, "cone")
    ((c, value, op),) = problem.losses[cone.index]
    assert (problem.view(value).index(1), graph.ops[op].name) == (c + 1, "stablehlo.slice")


def test_an_op_without_a_rule_replicates() -> None:
    # Shardy knows nothing of top_k, and its operand and results differ in shape.
    problem, (node,) = of(graph_of(lambda x: jax.lax.top_k(x, 2), spec(16, 8)), "op")
    assert node.states == 1
    assert all(t.sources[0].view == (R,) for t in problem.transfers if t.kind == "define")


def test_numbering_depends_on_program_order_only() -> None:
    first, second = (build_problem(graph_of(scan, spec(3, 8, 8), spec(16, 8))) for _ in range(2))
    assert [(n.kind, n.ops, n.members, n.limits) for n in first.nodes] == [
        (n.kind, n.ops, n.members, n.limits) for n in second.nodes
    ]


def _summed_in_a_loop(read: bool, dtype: Any = jnp.float32) -> Problem:
    """A weight's gradient, of a type, summed over eight steps of a loop that may read the sum."""

    def step(w: jax.Array, xs: jax.Array, ys: jax.Array) -> jax.Array:
        def body(total: jax.Array, pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            x, y = pair
            return total + (y.astype(dtype).T @ x.astype(dtype)).T.astype(total.dtype), total[0] if read else x[0]

        total, rows = jax.lax.scan(body, jnp.zeros_like(w), (xs, ys))
        return w - total + rows.sum()

    return build_problem(graph_of(step, spec(64, 32), spec(8, 128, 64), spec(8, 128, 32)))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(("read", "late"), [(False, 1), (True, 8)])
def test_what_a_loop_only_adds_up_is_reduced_behind_it(read: bool, late: int, dtype: Any) -> None:
    problem = _summed_in_a_loop(read, dtype)
    (dot,) = [op for op in problem.graph.ops if op.name == "stablehlo.dot_general"]
    found = transfer(problem, dot.results[0], "define")
    assert (found.trips, found.late) == (8, late)


def test_an_all_reduce_leaves_the_loop_unless_it_is_sliced() -> None:
    problem = _summed_in_a_loop(False)
    (dot,) = [op for op in problem.graph.ops if op.name == "stablehlo.dot_general"]
    found = transfer(problem, dot.results[0], "define")
    cluster = Cluster.load("dgx-h100:1")
    costs = Costs.on(ProgramTimes.of(problem, tie_repeats(problem), TimeModel(cluster)), (4, 2))

    def made(source: Layout, target: Layout) -> list[tuple[str, int]]:
        seconds, steps = costs.transfer(found, source, target)
        times = executions(costs, found, source, target, steps)
        assert seconds == pytest.approx(sum(n * costs.step_seconds(step) for step, n in times))
        late_s = sum(n * costs.step_seconds(step) for step, n in times if n == 1)
        assert late_seconds(costs, found, source, target, steps) == pytest.approx(late_s)
        return [(step.kind, n) for step, n in times]

    assert made((P, R), (R, R)) == [("all-reduce", 1)]
    assert made((P, R), (R, 0)) == [("all-reduce", 8)]  # sliced
    assert made((P, R), (0, R)) == [("reduce-scatter", 8)]  # scattered
    assert made((P, P), (R, 0)) == [("reduce-scatter", 8), ("all-reduce", 1)]


def test_partial_sums_are_reduced_together_only_beside_partial_ones() -> None:
    def three(x: jax.Array, a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
        return a @ x + b @ x + c @ x

    def whole_first(x: jax.Array, a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
        return (x + a @ x) + b @ x + c @ x

    arguments = (spec(32, 32),) * 4
    sources = {}
    for function in (three, whole_first):
        problem = build_problem(graph_of(function, *arguments))
        sources[function] = sorted(len(t.sources) for t in problem.transfers if t.kind == "define")
    assert sources == {three: [3], whole_first: [1, 1, 1]}


def test_parts_of_many_states_are_those_of_each() -> None:
    node = Node(0, "cone", limits=(8, 6, 12), uneven=(False, True, True))
    for among in (None, (0, 2), (1,), ()):
        ways = ways_of(node, (2, 4), among)
        for states in product(range(node.states), repeat=2):
            assert product_of(ways, states) == node.parts(states, (2, 4), among)
