"""What stages compute again: against every way, searched by hand, and what is written for the one that was chosen."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import inf

import jax
import jax.numpy as jnp
import microbatch_steps as steps
import pytest

from rhino.dialect.context import make_context, parse_bytes
from rhino.errors import NothingFits
from rhino.ir.import_graph import import_graph
from rhino.ir.microbatch.programs import SplitPrograms
from rhino.ir.microbatch.ways import PipelineWays
from rhino.machine import Cluster
from rhino.pipeline.search.options import JointOptions
from rhino.pipeline.search.search import plan_jointly
from rhino.pipeline.search.solution import JointSolution
from rhino.pipeline.search.ways import _WaySearch, plan_ways
from rhino.program.recomputation import Recomputation

CLUSTER = Cluster.load("dgx-h100:1")
LAYERS, BATCH, TOKENS, WIDTH = 8, 32, 512, 512
Weights = list[jax.Array]


def layer(x: jax.Array, w: jax.Array) -> jax.Array:
    """Its scores are large, and cheap to compute again."""
    scores = jax.nn.softmax(jnp.einsum("bsw,btw->bst", x @ w[0], x))
    return x + jnp.tanh(jnp.einsum("bst,btw->bsw", scores, x) @ w[1]) @ w[2]


def stepped(scan: bool, checkpoint: bool) -> str:
    """A step over layers, in a loop or not, each of which may be computed again by the user's wish."""
    one = jax.checkpoint(layer, prevent_cse=not scan) if checkpoint else layer

    def loss(weights: Weights, x: jax.Array) -> jax.Array:
        y = x
        if scan:
            y, _ = jax.lax.scan(lambda y, w: (one(y, w), None), x, weights[0])
        else:
            for w in weights:
                y = one(y, w)
        return (y**2).mean()

    def step(weights: Weights, x: jax.Array) -> tuple[Weights, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(weights, x)
        return jax.tree.map(lambda w, g: w - g, weights, gradients), value

    shape = (3, WIDTH, WIDTH)
    weights = [jnp.zeros((LAYERS, *shape))] if scan else [jnp.zeros(shape)] * LAYERS
    return steps.lowered(step, weights, jnp.zeros((BATCH, TOKENS, WIDTH)))


@cache
def ways(scan: bool, checkpoint: bool = False, chooses: bool = True) -> PipelineWays:
    module = steps.module_after(stepped(scan, checkpoint))
    return PipelineWays(module, SplitPrograms.of(module, "O1"), chooses)


def options(limit: float, stages: int = 4) -> JointOptions:
    return JointOptions(stages=stages, memory_limit=int(limit))


def planned(given: PipelineWays, limit: float) -> tuple[Recomputation, JointSolution]:
    number, solution = plan_ways(given, CLUSTER, options(limit))
    assert solution.best.peak_bytes <= limit
    again = given.ways[number].told
    # What was chosen is told with the candidate, and that there is no choice by nothing.
    assert solution.best.again == (again if number else None)
    return again, solution


def by_hand(given: PipelineWays, limit: float) -> dict[int, float]:
    """Seconds of the best pipeline in every way, each searched as if it were the step."""
    found = {}
    for number in range(len(given.ways)):
        programs = given.programs(number)
        if programs.prepared(BATCH) is None:
            continue
        try:
            found[number] = plan_jointly(programs, CLUSTER, options(limit)).best.step_time_s
        except NothingFits:
            continue
    return found


def _long(*case: object) -> object:
    return pytest.param(*case, marks=pytest.mark.long)


@pytest.mark.parametrize(
    ("scan", "checkpoint", "limit", "chosen"),
    [
        # The first segments, which the first stages run: more micro-batches are in flight there.
        (False, False, 1e8, "all of 6 segments"),
        _long(True, False, 8e7, "all of 8 loops"),
        _long(False, False, 1e9, "nothing"),
        _long(False, False, 2e8, "all of 8 segments"),
        _long(False, True, 1e9, "nothing, not even what jax.checkpoint says"),
        _long(False, True, 1e8, "all of 6 segments, instead of what jax.checkpoint says"),
        _long(False, True, 8e7, "nothing"),  # but what the step has it compute again
        _long(True, False, 1.5e8, "all of 6 loops"),
    ],
)
def test_no_way_that_a_user_can_ask_for_is_better(scan: bool, checkpoint: bool, limit: float, chosen: str) -> None:
    given = ways(scan, checkpoint)
    again, solution = planned(given, limit)
    assert again.name == chosen
    assert solution.best.step_time_s <= 1.02 * min(by_hand(given, limit).values(), default=inf)
    assert solution.bound_s <= solution.best.step_time_s


@pytest.mark.parametrize(
    ("scan", "checkpoint", "limit"), [_long(False, False, 1e8), (False, True, 1e9), _long(True, False, 1e8)]
)
def test_it_wins_a_tenth_over_what_the_step_has(scan: bool, checkpoint: bool, limit: float) -> None:
    _, solution = planned(ways(scan, checkpoint), limit)
    kept = plan_ways(ways(scan, checkpoint, chooses=False), CLUSTER, options(limit))
    assert kept[0] == 0
    assert solution.best.step_time_s < 0.9 * kept[1].best.step_time_s
    assert kept[1].best.name in {a.name for a in solution.alternatives}


def test_where_nothing_fits_as_it_is_there_may_be_a_pipeline_that_computes_again() -> None:
    asked = JointOptions(stages=4, microbatches=4, mesh=((1,),), memory_limit=130_000_000)
    with pytest.raises(NothingFits):
        plan_jointly(ways(False).step, CLUSTER, asked)
    number, solution = plan_ways(ways(False), CLUSTER, asked)
    assert ways(False).ways[number].told.policy == "layers"
    assert solution.best.peak_bytes <= 130_000_000
    with pytest.raises(NothingFits, match="computing again all of 8 segments needs") as error:
        plan_ways(ways(False), CLUSTER, replace(asked, memory_limit=50_000_000))
    assert "jax.checkpoint" not in error.value.remedy


def test_the_step_that_is_searched_is_the_one_that_the_passes_make() -> None:
    given = ways(True, True)
    number = next(k for k, way in enumerate(given.ways) if 0 < way.told.loops < LAYERS and way.told.policy == "layers")
    told = given.ways[number].told
    assert told.undoes
    made = steps.module_after(
        str(given.module),
        "rhino-recompute{policy=none}",
        f"rhino-split-scans{{count={given.step.pieces}}}",
        f"rhino-recompute{{policy={told.policy} count={told.count} loops={told.loops}}}",
        "rhino-split-microbatch{count=4}",
        "rhino-accumulate-in-loops",
    )
    prepared = given.programs(number).prepared(4)
    assert prepared is not None
    read = import_graph(made)
    assert [(op.name, op.operands, op.results) for op in read.ops] == [
        (op.name, op.operands, op.results) for op in prepared.graph.ops
    ]


def headed() -> str:
    """A step over layers in a loop between others, with momentum: segments beside the loop are computed again."""

    def loss(weights: Weights, x: jax.Array) -> jax.Array:
        y, _ = jax.lax.scan(lambda y, w: (layer(y, w) + w[0, 0], None), layer(x, weights[1]), weights[0])
        return (layer(jnp.tanh(y) * y, weights[2]) ** 2).mean()

    def step(weights: Weights, momentum: Weights, x: jax.Array) -> tuple[Weights, Weights, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(weights, x)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
        return jax.tree.map(lambda w, m: w - m, weights, momentum), momentum, value

    weights = [jnp.zeros((LAYERS, 3, WIDTH, WIDTH)), *[jnp.zeros((3, WIDTH, WIDTH))] * 2]
    return steps.lowered(step, weights, weights, jnp.zeros((BATCH, TOKENS, WIDTH)))


def test_what_layers_have_each_for_themselves_no_barrier_brings_together() -> None:
    module = steps.module_after(headed())
    given = PipelineWays(module, SplitPrograms.of(module, "O1"))
    both = [k for k, way in enumerate(given.ways) if way.told.segments and way.told.loops]
    assert both
    for number in both:
        graph = import_graph(parse_bytes(given.programs(number).bytecode, make_context()))
        stacks = {a.value for a in graph.arguments if graph.values[a.value].shape[:1] == (LAYERS,)}
        assert len(stacks) == 2
        held = {v for op in graph.ops if op.name == "stablehlo.optimization_barrier" for v in op.operands}
        assert held
        assert not held & stacks


def test_bytes_that_are_kept_are_those_of_the_stages() -> None:
    search = _WaySearch(ways(False), CLUSTER, options(1e9), lambda done, total, label: None)
    told = [way.told for way in search.steps.ways]
    for number, one in enumerate(told):
        saved = search.saved_bytes(number, 4)
        assert sum(saved) == pytest.approx(one.kept_bytes)
        assert saved == sorted(saved)
    half = next(k for k, one in enumerate(told) if one.policy == "dots" and one.segments == 4)
    saved = search.saved_bytes(half, 4)
    assert saved[0] == saved[1] < saved[2] == saved[3] == pytest.approx(told[0].kept_bytes / 4)
