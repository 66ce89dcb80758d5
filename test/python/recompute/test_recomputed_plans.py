"""What a step computes again so that it fits: against every way and every number of parts, tried one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import microbatch_steps as steps
import pytest

from rhino.errors import NothingFits
from rhino.ir.import_graph import import_graph
from rhino.ir.microbatch.one_program import OneProgram
from rhino.machine import Cluster
from rhino.program.data import Graph
from rhino.program.recomputation import KEEP, Way
from rhino.sharding import Options, limit, parts, plan_sharding
from rhino.sharding.form_bounds import Form
from rhino.sharding.parts import plan_in_parts

CLUSTER = Cluster.load("dgx-h100:1")
LAYERS, WIDTH = 3, 256
Weights = list[tuple[jax.Array, jax.Array]]


def layer(x: jax.Array, weights: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Its scores are large, and cheap to compute again."""
    w, v = weights
    scores = jax.nn.softmax(jnp.einsum("bsw,btw->bst", x @ w, x))
    return x + jnp.tanh(jnp.einsum("bst,btw->bsw", scores, x)) @ v


def unrolled(weights: Weights, x: jax.Array) -> tuple[Weights, jax.Array]:
    def loss(weights: Weights) -> jax.Array:
        y = x
        for one in weights:
            y = layer(y, one)
        return (y**2).mean()

    value, gradients = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - g, weights, gradients), value


def scanned(weights: tuple[jax.Array, jax.Array], x: jax.Array) -> tuple[Any, jax.Array]:
    def loss(weights: tuple[jax.Array, jax.Array]) -> jax.Array:
        return (jax.lax.scan(lambda y, one: (layer(y, one), None), x, weights)[0] ** 2).mean()

    value, gradients = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - g, weights, gradients), value


def checkpointed(weights: tuple[jax.Array, jax.Array], x: jax.Array) -> tuple[Any, jax.Array]:
    """As `scanned`, but each layer is computed again by the user's wish."""

    def loss(weights: tuple[jax.Array, jax.Array]) -> jax.Array:
        again = jax.checkpoint(lambda y, one: (layer(y, one), None), prevent_cse=False)
        return (jax.lax.scan(again, x, weights)[0] ** 2).mean()

    value, gradients = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - g, weights, gradients), value


def programs(
    scan: bool, batch: int, chooses: bool = True, checkpoint: bool = False, width: int = WIDTH, length: int = 512
) -> OneProgram:
    x = jnp.zeros((batch, length, width))
    w = jnp.zeros((LAYERS, width, width))
    step = checkpointed if checkpoint else scanned
    text = steps.lowered(step, (w, w), x) if scan else steps.lowered(unrolled, [(w[0], w[0])] * LAYERS, x)
    module = steps.module_after(text)
    return OneProgram(module, import_graph(module), chooses=chooses)


def by_hand(scan: bool, batch: int, limit: int, most: int, checkpoint: bool = False) -> dict[Form, float]:
    """Seconds of the best plan of every form of up to `most` parts for which one fits."""
    found = {}
    given = programs(scan, batch, checkpoint=checkpoint)
    parts = [n for n in (1, *given.counts) if n <= most]
    for form in (Form(n, way) for n in parts for way in range(len(given.ways))):
        graph = given.graph(form.parts, form.way)
        assert graph is not None
        try:
            predicted = plan_sharding(graph, CLUSTER, Options(mesh=(8,), memory_limit=limit)).predicted
        except NothingFits:
            continue
        assert predicted.memory.peak_bytes <= limit
        found[form] = predicted.step_time_s
    return found


@pytest.mark.parametrize(
    ("scan", "batch", "limit", "most", "recomputes"),
    [
        pytest.param(True, 8, 17_000_000, 8, False, marks=pytest.mark.long),
        (True, 8, 9_000_000, 1, True),
        pytest.param(True, 8, 7_000_000, 8, True, marks=pytest.mark.long),
        pytest.param(True, 8, 12_500_000, 8, True, marks=pytest.mark.long),
        pytest.param(True, 32, 19_000_000, 8, True, marks=pytest.mark.long),
    ],
)
def test_no_form_that_a_user_can_ask_for_is_better(
    scan: bool, batch: int, limit: int, most: int, recomputes: bool
) -> None:
    given = programs(scan, batch)
    form, found = plan_in_parts(given, CLUSTER, Options(mesh=(8,), memory_limit=limit))
    assert found.predicted.memory.peak_bytes <= limit
    assert found.predicted.step_time_s <= 1.02 * min(by_hand(scan, batch, limit, most).values())
    assert (given.way(form.way).told.policy != "keep") == recomputes


@pytest.mark.parametrize(
    ("limit", "name"),
    [
        (16_000_000, "nothing, not even"),
        pytest.param(14_000_000, "nothing", marks=pytest.mark.long),
        pytest.param(7_000_000, "all of", marks=pytest.mark.long),  # a minute, most of it in plans by hand
    ],
)
def test_what_the_user_has_computed_again_is_one_of_the_ways(limit: int, name: str) -> None:
    given = programs(True, 8, checkpoint=True)
    form, found = plan_in_parts(given, CLUSTER, Options(mesh=(8,), memory_limit=limit))
    assert found.predicted.memory.peak_bytes <= limit
    assert found.predicted.step_time_s <= 1.02 * min(by_hand(True, 8, limit, 8, checkpoint=True).values())
    assert given.way(form.way).told.name.startswith(name)
    assert given.way(form.way).told.undoes == (name != "nothing")


@pytest.mark.parametrize("tighter", [limit._TIGHTER, 0])
def test_a_plan_over_the_limit_that_meets_its_own_row_is_not_the_end(
    tighter: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a limit is refused with a plan that is within it, as the smallest there is."""
    graph, options = programs(True, 8, checkpoint=True).graph(4, 1), Options(mesh=(8,), memory_limit=7_000_000)
    assert graph is not None
    judged: list[bool] = []
    monkeypatch.setattr(limit, "_TIGHTER", tighter)
    monkeypatch.setattr(limit._Cutting, "tighten", _noted(limit._Cutting.tighten, judged))
    found = plan_sharding(graph, CLUSTER, options)
    assert found.predicted.memory.peak_bytes <= 7_000_000
    assert judged[0] == (tighter > 0)


def _noted(function: Callable[..., bool], noted: list[bool]) -> Callable[..., bool]:
    def call(*args: object) -> bool:
        noted.append(function(*args))
        return noted[-1]

    return call


@pytest.mark.parametrize("nbytes", [pytest.param(5_000_000, marks=pytest.mark.long), 7_000_000])
def test_what_fits_in_less_fits_in_more(nbytes: int) -> None:
    seconds = []
    for more in (0, 1_000_000):
        given = programs(True, 8, checkpoint=True)
        options = Options(mesh=(8,), memory_limit=nbytes + more)
        seconds.append(plan_in_parts(given, CLUSTER, options)[1].predicted.step_time_s)
    assert seconds[0] >= seconds[1]


def test_where_there_is_room_nothing_that_the_user_asked_for_is_computed_again() -> None:
    limit = Options(mesh=(8,), memory_limit=50_000_000)
    given = programs(True, 8, checkpoint=True)
    form, found = plan_in_parts(given, CLUSTER, limit)
    assert form == Form(1, given.plain)
    assert given.way(form.way).told.undoes
    assert "ways" not in vars(given)
    # Without a wish it is the same in the end.
    unasked = plan_in_parts(programs(True, 8), CLUSTER, limit)[1].predicted
    kept = plan_in_parts(programs(True, 8, chooses=False, checkpoint=True), CLUSTER, limit)[1].predicted
    assert found.predicted.step_time_s == pytest.approx(unasked.step_time_s, rel=0.01)
    assert found.predicted.memory.peak_bytes == pytest.approx(unasked.memory.peak_bytes, rel=0.02)
    assert found.predicted.step_time_s < 0.97 * kept.step_time_s
    assert found.predicted.memory.peak_bytes > kept.memory.peak_bytes


def test_unrolled_layers_are_computed_again_before_the_batch_is_cut() -> None:
    form, found = plan_in_parts(programs(False, 8), CLUSTER, Options(mesh=(8,), memory_limit=11_200_000))
    assert found.predicted.memory.peak_bytes <= 11_200_000
    assert form.parts == 1
    assert form.way


def test_a_long_program_that_fits_when_it_is_split_further_is_left_at_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(parts.EFFORT, "O1", 0)
    given = programs(True, 8)
    form, found = plan_in_parts(given, CLUSTER, Options(mesh=(8,), memory_limit=19_300_000))
    assert form == Form(1)
    assert found.predicted.memory.peak_bytes <= 19_300_000
    assert "ways" not in vars(given)  # nor looked for: that takes as long as reading the program


def test_of_a_long_program_what_may_be_fastest_is_tried_first(monkeypatch: pytest.MonkeyPatch) -> None:
    # More micro-batches do not help, and three programs are all that is tried.
    options = Options(mesh=(8,), memory_limit=14_000_000)
    form, found = plan_in_parts(programs(False, 16), CLUSTER, options)
    given = programs(False, 16)
    monkeypatch.setitem(parts.EFFORT, "O1", 3 * len(given.whole.ops))
    few, few_found = plan_in_parts(given, CLUSTER, options)
    assert (few, few_found.predicted) == (form, found.predicted)
    assert form.way


def test_a_loop_over_layers_stacks_only_what_is_not_fused() -> None:
    options = Options(mesh=(8,), memory_limit=50_000_000)
    given = programs(True, 8)
    form, found = plan_in_parts(given, CLUSTER, options)
    assert form == Form(1, given.plain)
    assert given.way(form.way).told.name == "nothing but what is fused into its readers"
    assert "ways" not in vars(given)
    # jax stacks whatever is differentiated, and not the least that is made into it.
    kept = plan_in_parts(programs(True, 8, chooses=False), CLUSTER, options)[1]
    assert found.predicted.step_time_s < 0.97 * kept.predicted.step_time_s
    assert found.predicted.memory.peak_bytes < 0.8 * kept.predicted.memory.peak_bytes


@dataclass(frozen=True)
class GivenAndFused:
    """A step, and one that is said to be the same with loops that stack less."""

    whole: OneProgram
    fused: OneProgram
    fewest: int = 1
    counts: tuple[int, ...] = ()
    examples: int = 0
    plain: int = 1

    @property
    def ways(self) -> tuple[Way, ...]:
        return KEEP, replace(KEEP, told=replace(KEEP.told, undoes=True, fuses=True))

    def way(self, number: int) -> Way:
        return self.ways[number]

    def graph(self, parts: int, way: int = 0, sums: int = 1) -> Graph | None:
        return (self.whole, self.fused)[way].whole


@pytest.mark.parametrize(("wider", "way"), [(0, 1), (8, 1), (16, 0), (64, 0)])
def test_loops_that_stack_less_are_not_taken_where_they_send_more(wider: int, way: int) -> None:
    """Wider layers of shorter sequences: a step that computes less, and has more gradients to send over slow links."""
    options, hosts = Options(mesh=(64,)), Cluster.load("p3.16xlarge:8")
    given = GivenAndFused(programs(False, 64, width=1024), programs(False, 64, width=1024 + wider, length=448))
    form, found = plan_in_parts(given, hosts, options)
    assert form == Form(1, way)
    graphs = [given.graph(1, n) for n in range(2)]
    seconds = [plan_sharding(graph, hosts, options).predicted.step_time_s for graph in graphs if graph is not None]
    assert found.predicted.step_time_s == seconds[way] < 1.01 * min(seconds)
    named = "1 micro-batch, computing again nothing but what is fused into its readers"
    assert (named in {a.name for a in found.alternatives}) == (way == 0)


def test_what_fits_keeps_what_it_kept() -> None:
    given = programs(False, 8)
    form, found = plan_in_parts(given, CLUSTER, Options(mesh=(8,), memory_limit=50_000_000))
    assert form == Form(1)
    assert "ways" not in vars(given)
    kept = plan_in_parts(programs(False, 8, chooses=False), CLUSTER, Options(mesh=(8,), memory_limit=50_000_000))[1]
    assert found.predicted == kept.predicted


def test_it_wins_a_tenth_and_what_lost_says_what_it_would_have_needed() -> None:
    options = Options(mesh=(8,), memory_limit=12_500_000)
    kept = plan_in_parts(programs(True, 8, chooses=False), CLUSTER, options)[1]
    found = plan_in_parts(programs(True, 8), CLUSTER, options)[1]
    assert found.predicted.step_time_s < 0.9 * kept.predicted.step_time_s
    names = {a.name: a for a in found.alternatives}
    assert "no smaller one" in names["1 micro-batch"].why
    fused = names["1 micro-batch, computing again nothing but what is fused into its readers"]
    assert fused.peak_bytes is not None and fused.peak_bytes > 12_500_000


def test_the_program_that_is_searched_is_the_one_that_the_passes_make() -> None:
    given = programs(True, 8)
    told = given.ways[2].told
    made = steps.module_after(
        str(given.module),
        "rhino-recompute{policy=none}",
        f"rhino-recompute{{policy={told.policy} count={told.count}}}",
        "rhino-split-microbatch{count=2}",
        "rhino-accumulate-in-loops",
    )
    graph = given.graph(2, 2)
    assert graph is not None
    read = import_graph(made)
    assert [(op.name, op.operands, op.results) for op in read.ops] == [
        (op.name, op.operands, op.results) for op in graph.ops
    ]
