"""Sizes that devices do not divide: what may be split all the same, what it costs, and that XLA computes the same."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hand_graphs import Builder
from jax import lax
from search_programs import GIB, module_of, spec

import rhino
from rhino import Plan
from rhino.compile import collective_bytes, compile_module
from rhino.ir.import_graph import import_graph
from rhino.ir.write_layouts import annotate
from rhino.machine import Cluster, Device, Level
from rhino.program import Graph
from rhino.sharding import Options, Solution, plan_sharding
from rhino.sharding.cones import build_problem
from rhino.sharding.layout import RouteStep, route, shards
from rhino.sharding.padding import unsplit
from rhino.sharding.problem import PARTIAL, REPLICATED
from rhino.sharding.uneven import pays, share, ways

R, P = REPLICATED, PARTIAL
ROWS, IN, OUT = 30, 11, 17  # of 8 devices' parts 30 pads to 32; 11 to 16 and 17 to 24, which does not pay


def test_parts_are_as_large_as_the_largest() -> None:
    assert ways(32, 8) == 8
    assert [share(30 * 64, ways(30, n)) for n in (4, 8)] == [8 * 64, 4 * 64]
    assert share(50257 * 768 * 4, ways(50257, 8)) == 6283 * 768 * 4
    assert [n for n in (2, 4, 8) if pays(9, n)] == [2, 4]
    assert shards((0, 1), (2, 4), (6, 30)) == 2 * 30 / 8


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        # Whole parts, padding included, are gathered, moved and permuted.
        ((0,), (R,), [("all-gather", (0,), 32 * 64)]),
        ((0,), (1,), [("all-to-all", (0,), 32 * 64)]),
        ((1,), (0,), [("all-to-all", (0,), 32 * 64)]),
        # A sum is whole before it is split so: XLA scatters equal parts.
        ((P,), (0,), [("all-reduce", (0,), 30 * 64)]),
        ((R,), (0,), []),
    ],
)
def test_conversions(source: Any, target: Any, expected: list[tuple[str, tuple[int, ...], float]]) -> None:
    found = route(source, target, (8,), True, odd=((0, 30),)).steps
    assert [(s.kind, s.axes, pytest.approx(s.nbytes * 30 * 64)) for s in found] == expected
    assert all(isinstance(s, RouteStep) for s in found)


def uneven(graph: Graph) -> dict[str, list[int]]:
    """The sizes that decisions may split into parts that differ, by op; those of cones under ""."""
    found: dict[str, list[int]] = {}
    for node in build_problem(graph, uneven=True).nodes:
        name = graph.ops[node.ops[0]].name if node.kind == "op" else ""
        sizes = [size for size, may in zip(node.limits, node.uneven, strict=True) if may]
        found[name] = sorted({*found.get(name, []), *sizes})
    return found


def test_only_what_is_inside_is_split_so() -> None:
    build = Builder()
    x, w, y = build.argument(30, 11), build.argument(11, 17), build.argument(30, 7)
    inner = build.same("tanh", build.dot(x, w))
    # What is combined with an argument element by element is held as that is, and a result as it is given back.
    error = build.same("subtract", build.dot(inner, build.argument(17, 7)), y)
    assert uneven(build.finish(build.dot(build.transpose(inner), error))) == {
        "stablehlo.dot_general": [7, 11, 17, 30],
        "": [17, 30],
    }


def test_views_of_another_size_are_not_split_so() -> None:
    build = Builder()
    inner = build.dot(build.argument(30, 8), build.argument(8, 17))
    back = build.ungrouped(build.same("tanh", build.in_groups(inner, 5)))
    # 30 rows are 6 groups of 5, and parts of both cannot be the same rows.
    assert uneven(build.finish(build.dot(back, build.argument(17, 8))))[""] == [17]


def test_programs_that_divide_have_no_further_states() -> None:
    build = Builder()
    h = build.same("tanh", build.dot(build.argument(32, 16), build.argument(16, 8)))
    problem = build_problem(build.finish(build.dot(h, build.argument(8, 16))), uneven=True)
    assert all(node.takes(s, (n,)) == (n != 3) for node in problem.nodes for s in range(1, node.states) for n in (2, 4))


def free(target: str) -> Cluster:
    """8 devices that compute for ages and send in no time."""
    device = Device(target, target, {"f32": 1e6}, GIB, 1e6)
    return Cluster("free", 1, 8, device, (Level("link", 8, 1e15, 1e-15),), target != "cpu")


def split_so(solution: Solution) -> set[str]:
    """Ops whose decision has parts that differ."""
    found = set()
    for node in solution.problem.nodes:
        states = solution.states[solution.costs.quotient.klass[node.index]]
        if any(s > 0 and node.limits[s - 1] % n for s, n in zip(states, solution.costs.sizes, strict=True)):
            found.add(solution.problem.graph.ops[node.ops[0]].name.removeprefix("stablehlo.") if node.ops else "")
    return found


def convolved(h: jax.Array, kernel: jax.Array) -> jax.Array:
    return lax.conv_general_dilated(h, kernel, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))


def sums(x: jax.Array, w: jax.Array) -> Any:
    """What would show if padding were summed: it is infinite, or not a number, wherever it is not masked."""
    h = x @ w
    odd = jnp.log(jnp.abs(h)) + 1 / h**2
    rows = jnp.where(jnp.arange(ROWS)[:, None] < 7, odd, 0.5)
    centred = h - h.mean(0)
    return odd.T @ jnp.exp(h), odd.sum(0), rows.min(0), (2 + jnp.cos(odd[:5])).prod(0), (centred**2).mean(0) @ w.T


def windows(x: jax.Array, w: jax.Array) -> Any:
    """Convolutions over batch and features, sorting, running sums, pooling and its gradient."""
    h = x @ w
    kernel = jnp.full((3, 1, 4), 0.1)
    gradient = jax.grad(lambda k: jnp.sin(convolved(h[:, :, None], k)).sum())(kernel)

    def pooled(h: jax.Array) -> jax.Array:
        return lax.reduce_window(h, -jnp.inf, lax.max, (1, 2), (1, 2), "VALID")

    down = jax.grad(lambda h: jnp.sin(pooled(h)).sum())(h)
    turned = jnp.concatenate([jnp.cumsum(h, 1), h[:, ::-1], jnp.pad(h, ((0, 0), (1, 2)))], 1)
    return gradient, down @ w.T, jnp.sort(h, 1) @ w.T, turned @ jnp.ones((3 * OUT + 3, 3))


def lookups(x: jax.Array, w: jax.Array) -> Any:
    """Rows looked up by what was computed, and their gradients added up."""
    at = (jnp.abs(x @ w)[:, 0] * 100).astype(jnp.int32) % OUT

    def loss(table: jax.Array) -> jax.Array:
        return jnp.sin(jnp.tanh(jnp.take(table, at, axis=0)) @ w).sum()

    return jax.grad(loss)(w.T) @ w, jnp.full((OUT, OUT), -1.0).at[at].max(x @ w) @ w.T


def loops(x: jax.Array, w: jax.Array) -> Any:
    """Carried by a scan and stacked by it, forward and backward; in branches; computed again."""

    def loss(w: jax.Array) -> jax.Array:
        def body(h: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            h = jnp.tanh(h @ w @ w.T * 0.1)
            return h, h

        last, every = lax.scan(jax.checkpoint(body), jnp.tanh(x @ w) @ w.T * 0.1, None, length=3)
        either = lax.cond(w[0, 0] > 0, jnp.sin, jnp.exp, last)
        return (either**2 + 1 / (1 + every.sum(0) ** 2)).sum()

    return jax.value_and_grad(loss)(w)


def vocabulary(x: jax.Array, w: jax.Array) -> Any:
    """Cross entropy over classes that do not divide, and its gradients."""
    target = jnp.arange(IN) * 2

    def loss(x: jax.Array, w: jax.Array) -> jax.Array:
        logits = jnp.tanh(w @ w.T) @ x.T
        return (jax.nn.log_softmax(logits)[jnp.arange(IN), target]).mean() + jnp.max(logits, 1).sum()

    return jax.value_and_grad(loss, argnums=(0, 1))(x, w)


CASES = {
    sums: {"dot_general"},
    windows: {"dot_general", "convolution", "sort", "reduce_window", "select_and_scatter"},
    lookups: {"dot_general", "gather"},
    loops: {"dot_general"},
    vocabulary: {"dot_general", "gather"},
}


@pytest.mark.parametrize("mesh", [(8,), (2, 4)], ids=["8", "2x4"])
@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_eight_devices_compute_what_one_does(function: Any, mesh: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    x, w = (random.normal(size=shape).astype(np.float32) for shape in ((ROWS, IN), (IN, OUT)))
    module = module_of(function, x, w)
    graph = import_graph(module)
    solution = plan_sharding(graph, free("cpu"), Options(mesh=mesh))
    assert len(mesh) > 1 or split_so(solution) >= CASES[function]
    annotate(module, graph, solution)
    executable = compile_module(str(module))
    got, want = jax.tree.leaves(executable(x, w)), jax.tree.leaves(jax.jit(function)(x, w))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(np.asarray(a), b, rtol=5e-3, atol=2e-5 * float(np.abs(b).max()))
    measured = collective_bytes(executable.collectives())
    assert measured == pytest.approx(solution.predicted.comm_bytes, rel=0.05)


@pytest.mark.parametrize("mesh", [(8,), (2, 4)], ids=["8", "2x4"])
def test_gpus_send_what_was_predicted(mesh: tuple[int, ...], gpu_compiler: None) -> None:
    def step(params: tuple[jax.Array, jax.Array], x: jax.Array, y: jax.Array) -> Any:
        def loss(params: tuple[jax.Array, jax.Array]) -> jax.Array:
            logits = jnp.tanh(x @ params[0]) @ params[1]
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

        return jax.tree.map(lambda p, g: p - g, params, jax.grad(loss)(params))

    params, x, y = (spec(4096, 8192), spec(8192, 4003)), spec(7503, 4096), spec(7503, dtype=jnp.int32)
    module = module_of(step, params, x, y, donate=(0,))
    graph = import_graph(module)
    solution = plan_sharding(graph, Cluster.load("dgx-h100:1"), Options(mesh=mesh))
    assert split_so(solution)
    annotate(module, graph, solution)
    executable = compile_module(str(module), "h100")
    assert collective_bytes(executable.collectives()) == solution.predicted.comm_bytes
    assert executable.memory_analysis().peak_bytes == pytest.approx(solution.predicted.memory.peak_bytes, rel=0.2)


def classifier(rows: int, classes: int) -> tuple[Any, tuple[Any, ...]]:
    """A step whose last product is most of its work, and its arguments."""

    def step(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> Any:
        def loss(params: dict[str, jax.Array]) -> jax.Array:
            logits = jnp.tanh(x @ params["up"]) @ params["head"]
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

        return jax.tree.map(lambda p, g: p - g, params, jax.grad(loss)(params))

    params = {"up": spec(2048, 2048), "head": spec(2048, classes)}
    return step, (params, spec(rows, 2048), spec(rows, dtype=jnp.int32))


def test_what_padding_gives_is_what_the_padded_program_takes() -> None:
    step, arguments = classifier(64, 50257)
    parallel = rhino.parallelize(step, cluster="dgx-h100:1", mesh="2x4", donate_argnums=(0,))
    plan = parallel.plan(*arguments)
    (found,) = plan.unsplit
    assert (found.name, found.dim, found.size, found.padded) == ("params['head']", 1, 50257, 50264)
    padded = parallel.plan(*classifier(64, 50264)[1])
    assert padded.unsplit == ()
    assert found.step_time_s == padded.predicted.step_time_s < 0.95 * plan.predicted.step_time_s
    assert found.peak_bytes == padded.predicted.peak_bytes
    line = (
        "dim 1 of params['head'] (50257) is not split: 8 devices do not divide it; padded to 50264, a step would take"
    )
    assert line in " ".join(plan.summary().split())
    assert escape(line) in plan.report_html()
    assert "do not divide" not in padded.summary() + padded.report_html()


def test_what_padding_gives_is_in_the_file(tmp_path: Path) -> None:
    step, arguments = classifier(64, 50257)
    plan = rhino.parallelize(step, cluster="dgx-h100:1", mesh="8").plan(*arguments)
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").unsplit == plan.unsplit != ()


def test_everything_of_one_size_is_padded_together() -> None:
    step, arguments = classifier(3750, 1000)
    graph = import_graph(module_of(step, *arguments))
    solution = plan_sharding(graph, Cluster.load("dgx-h100:1"), Options(mesh=(8,)))
    (found,) = unsplit(graph, Cluster.load("dgx-h100:1"), Options(), solution)
    assert (found.dim, found.size, found.padded) == (0, 3750, 3752)
    step, arguments = classifier(3752, 1000)
    same = import_graph(module_of(step, *arguments))
    expected = plan_sharding(same, Cluster.load("dgx-h100:1"), Options(mesh=(8,))).predicted
    assert found.step_time_s == expected.step_time_s
