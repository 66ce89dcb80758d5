"""The distributed optimizer: what replicas share out, when that is chosen, what it costs, and what XLA makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rhino.dialect import functions
from rhino.dialect.context import make_context, parse_text
from rhino.dialect.sdy import results_of
from rhino.ir.microbatch.programs import SplitPrograms
from rhino.machine import Cluster
from rhino.pipeline.cut.plan import StagePlan
from rhino.pipeline.search.distributed import ElementwiseUpdate, distributed
from rhino.pipeline.search.options import JointOptions
from rhino.pipeline.search.pipeline import Pipeline, pipeline
from rhino.pipeline.search.placement import Placement
from rhino.pipeline.search.search import plan_jointly
from rhino.pipeline.search.solution import PipelineCandidate
from rhino.plan.module import plan_module
from rhino.request import PlanRequest
from rhino.runtime import build

LAYERS, WIDTH, BATCH = 2, 4096, 32
W, X = f"tensor<{WIDTH}x{WIDTH}xf32>", f"tensor<{BATCH}x{WIDTH}xf32>"
# Bytes of a parameter, and of the momentum that goes with it.
NBYTES = WIDTH * WIDTH * 4
MOMENTUM = """
  %k{i} = stablehlo.multiply %m{i}, %decay : {W}
  %v{i} = stablehlo.add %k{i}, {g} : {W}
  %u{i} = stablehlo.subtract %w{i}, %v{i} : {W}"""
CLIPPED = """
  %q{i} = stablehlo.multiply %g{i}, %g{i} : {W}
  %z{i} = stablehlo.reduce(%q{i} init: %zero) applies stablehlo.add across dimensions = [0, 1] : ({W}, tensor<f32>) -> tensor<f32>
  %y{i} = stablehlo.broadcast_in_dim %z{i}, dims = [] : (tensor<f32>) -> {W}
  %c{i} = stablehlo.multiply %g{i}, %y{i} : {W}"""  # noqa: E501 - MLIR's lines are as long as its types
# What is not element by element: the momentum's part that goes into the update is a product of it.
ORTHOGONAL = """
  %k{i} = stablehlo.multiply %m{i}, %decay : {W}
  %v{i} = stablehlo.add %k{i}, {g} : {W}
  %o{i} = stablehlo.dot_general %v{i}, %v{i}, contracting_dims = [1] x [1] : ({W}, {W}) -> {W}
  %u{i} = stablehlo.subtract %w{i}, %o{i} : {W}"""


def step(update: str = MOMENTUM, gradient: str = "%g{i}", before: str = "", more: str = "", pin: str = "") -> str:
    """A chain of products with tanh between, and an update with momentum; `more` is returned besides."""
    arguments, lines = [], []
    for i in range(LAYERS):
        arguments.append(f'%w{i}: {W} {{rhino.role = "param", tf.aliasing_output = {i} : i32}}')
        given = f"%h{i - 1}" if i else "%x"
        lines.append(f"%d{i} = stablehlo.dot_general {given}, %w{i}, contracting_dims = [1] x [0] : ({X}, {W}) -> {X}")
        lines.append(f"%h{i} = stablehlo.tanh %d{i} : {X}")
    for i in range(LAYERS):
        arguments.append(f'%m{i}: {W} {{rhino.role = "opt_state", tf.aliasing_output = {LAYERS + i} : i32{pin}}}')
    back = f"%h{LAYERS - 1}"
    for i in reversed(range(LAYERS)):
        given = f"%h{i - 1}" if i else "%x"
        lines.append(f"%s{i} = stablehlo.multiply {back}, %h{i} : {X}")
        lines.append(f"%g{i} = stablehlo.dot_general {given}, %s{i}, contracting_dims = [0] x [0] : ({X}, {X}) -> {W}")
        if i:
            lines.append(
                f"%b{i} = stablehlo.dot_general %s{i}, %w{i}, contracting_dims = [1] x [1] : ({X}, {W}) -> {X}"
            )
        back = f"%b{i}"
    for i in range(LAYERS):
        lines.append((before + update).format(i=i, W=W, g=gradient.format(i=i)))
    new = [f"%{name}{i}" for name in "uv" for i in range(LAYERS)] + [more] * bool(more)
    kinds = ", ".join([W] * len(new))
    body = "\n  ".join(lines)
    return (
        f'func.func @main({", ".join(arguments)}, %x: {X} {{rhino.role = "batch"}}) -> ({kinds}) {{\n'
        f"  %zero = stablehlo.constant dense<0.0> : tensor<f32>\n  %decay = stablehlo.constant dense<0.9> : {W}\n"
        f"  {body}\n  return {', '.join(new)} : {kinds}\n}}\n"
    )


def programs(text: str) -> SplitPrograms:
    """A step, to be cut into any number of micro-batches."""
    return SplitPrograms.of(parse_text(text, make_context()), "O1")


def updates(text: str) -> list[ElementwiseUpdate]:
    """Those of a step in four micro-batches that replicas can share out."""
    prepared = programs(text).prepared(4)
    assert prepared is not None
    return list(prepared.updates)


def best(cluster: str, text: str = "", memory_limit: int = 0) -> PipelineCandidate:
    """The pipeline of two stages of single devices, and so of four replicas."""
    options = JointOptions(stages=2, mesh=((1,),), microbatches=2, schedule="1f1b", memory_limit=memory_limit or None)
    return plan_jointly(programs(text or step()), Cluster.load(cluster), options).best


def priced(found: PipelineCandidate, distribute: bool) -> Pipeline:
    """What a pipeline comes to with, or without, an optimizer that may be distributed."""
    placement = Placement.of(Cluster.load("p3.16xlarge:1"), found.shape.stages)
    return pipeline(found.prepared, found.layouts, found.stages, found.shape, placement, 1 << 40, distribute)


def test_what_is_element_by_element_is_shared_out_with_its_state() -> None:
    found = updates(step())
    assert [(len(u.ops), len(u.state), len(u.sums), len(u.parameters)) for u in found] == [(3, 1, 1, 1)] * LAYERS


def test_sums_of_all_parts_may_read_them() -> None:
    found = updates(step(gradient="%c{i}", before=CLIPPED))
    assert [(len(u.ops), len(u.sums)) for u in found] == [(5, 1)] * LAYERS


@pytest.mark.parametrize(
    "text",
    [step(ORTHOGONAL), step(pin=", sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>")],
    ids=["a product reads all of it", "its layout is given"],
)
def test_what_needs_all_of_a_value_is_not_shared_out(text: str) -> None:
    mesh = 'sdy.mesh @mesh = <["x"=2]>\n' if "@mesh" in text else ""
    assert updates(mesh + text) == []


def test_a_gradient_that_is_returned_is_summed_whole() -> None:
    assert len(updates(step(more="%g0"))) == LAYERS - 1


def test_it_is_chosen_where_it_takes_no_longer() -> None:
    found = best("p3.16xlarge:1")
    assert found.shape.replicas == 4
    shared = found.pipeline.replicas
    assert len(shared.distributed.dims) == 3 * LAYERS and set(shared.distributed.dims.values()) == {0}
    assert [dict(kinds) for kinds in shared.collectives] == [{"reduce-scatter": NBYTES, "all-gather": NBYTES}] * 2
    whole = priced(found, distribute=False)
    assert [dict(kinds) for kinds in whole.replicas.collectives] == [{"all-reduce": NBYTES}] * 2
    saved = [a.argument_bytes - b.argument_bytes for a, b in zip(whole.memory, found.pipeline.memory, strict=True)]
    assert saved == [NBYTES * 3 // 4] * 2
    assert all(a < b for a, b in zip(found.pipeline.loads.update, whole.loads.update, strict=True))
    assert found.pipeline.costs.apply_s <= whole.costs.apply_s


def test_it_is_chosen_where_nothing_fits_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rhino.pipeline.search.pipeline._gain_s", lambda *args: -1.0)
    plain = best("p3.16xlarge:1")
    assert not plain.pipeline.replicas.distributed.dims
    tight = best("p3.16xlarge:1", memory_limit=plain.peak_bytes - 1)
    assert tight.pipeline.replicas.distributed.dims
    assert tight.peak_bytes < plain.peak_bytes


def test_what_several_stages_do_is_not_shared_out() -> None:
    found = best("p3.16xlarge:1")
    step, solutions = found.prepared.ready.step, [found.layout_of(s).solution for s in range(2)]
    odd = list(found.stages.stage_of_op)
    (first, *_), _ = (update.ops for update in found.prepared.updates)
    odd[first] = 1 - odd[first]
    moved: StagePlan = replace(found.stages, stage_of_op=tuple(odd))
    assert len(distributed(step, found.prepared.updates, found.stages, solutions, 4).dims) == 3 * LAYERS
    assert len(distributed(step, found.prepared.updates, moved, solutions, 4).dims) == 3
    assert not distributed(step, found.prepared.updates, found.stages, solutions, 3).dims  # nothing divides
    assert not distributed(step, found.prepared.updates, found.stages, solutions, 1).dims


# By the devices of a replica, the devices of a stage that are the same part of each.
BETWEEN = {1: [(0, 1, 2, 3)], 2: [(0, 2), (1, 3)]}


@pytest.mark.parametrize("mesh", BETWEEN)
def test_xla_scatters_and_gathers_what_was_predicted(mesh: int) -> None:
    module = parse_text(step(), make_context())
    request = PlanRequest(cluster=Cluster.load("p3.16xlarge:1"), stages=2, mesh=str(mesh), microbatches=2)
    plan = plan_module(module, request).plan
    executable = build(str(module), None, "v100")
    replicas = 4 // mesh
    each = NBYTES // mesh * (replicas - 1) // replicas
    sent = []
    for found in executable.collectives():
        between = {c.kind: c.bytes for c in found if c.groups == tuple(BETWEEN[mesh])}
        assert between == {"reduce-scatter": each, "all-gather": each}
        kinds = dict.fromkeys(c.kind for c in found)
        sent.append({kind: sum(c.bytes for c in found if c.kind == kind) for kind in kinds})
    assert plan.predicted.comm_bytes in sent
    arguments = [group.argument_bytes for group in executable.memory_analysis().groups]
    assert max(arguments) == plan.predicted.memory["argument_bytes"]


def test_layouts_that_are_written_do_not_move_the_marks() -> None:
    # The products' parts are summed within a replica, so that there are constraints before the updates.
    module = parse_text(step(), make_context())
    plan_module(module, PlanRequest(cluster=Cluster.load("p3.16xlarge:1"), stages=2, mesh="2", microbatches=2))
    main = functions.find(module, "main")
    assert main is not None
    shared = {op.name for op in functions.walk(main) if any("replica" in str(s) for s in results_of(op))}
    assert "sdy.sharding_constraint" in {op.name for op in functions.walk(main)}
    assert shared - {"sdy.manual_computation"} == {"stablehlo.multiply", "stablehlo.add", "stablehlo.subtract"}
