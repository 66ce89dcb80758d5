"""Whole steps: which ops are forward, where everything goes, and that the fragments made of it compute the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fragment_interpreter import interpreted, run_fragments
from microbatch_steps import agree, lowered, module_after

from bench._stage_orders import orders
from rhino.errors import RhinoError
from rhino.ir.import_graph import import_graph
from rhino.pipeline.cut import (
    StageMachine,
    StagePlan,
    StageTransfer,
    best_linear_cut,
    plan_stages,
    plan_step,
    prepare_step,
)
from rhino.pipeline.cut.plan import stage_problem
from rhino.pipeline.cut.step import read_step
from rhino.program.data import Graph

WIDTH, BATCH = 16, 8
Params = dict[str, jax.Array]


def arrays(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.standard_normal(shape).astype(np.float32) * 0.3 for shape in shapes]


def layers(count: int) -> Params:
    return {f"w{i}": jnp.asarray(w) for i, w in enumerate(arrays(*[(WIDTH, WIDTH)] * count))}


def chain(params: Params, x: jax.Array) -> jax.Array:
    for name in sorted(params):
        x = jnp.tanh(x @ params[name])
    return x


def trained(
    network: Callable[[Params, jax.Array], jax.Array],
    loss_too: bool = True,
    frozen: Sequence[str] = (),
    clip: bool = False,
) -> Callable[..., Any]:
    """A step of gradient descent on the mean square of the network's output."""

    def step(params: Params, x: jax.Array, y: jax.Array) -> Any:
        moving = {k: v for k, v in params.items() if k not in frozen}
        kept = {k: v for k, v in params.items() if k in frozen}
        loss, grads = jax.value_and_grad(lambda p: jnp.mean((network(p | kept, x) - y) ** 2))(moving)
        if clip:
            norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
            grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, 0.1 / norm), grads)
        new = {k: v - 0.1 * grads[k] for k, v in moving.items()} | kept
        return (new, loss) if loss_too else new

    return step


def split_graph(step: Callable[..., Any], params: Params, count: int = 4) -> tuple[str, Graph]:
    text = lowered(step, params, *arrays((BATCH, WIDTH), (BATCH, WIDTH)))
    module = module_after(text, f"rhino-split-microbatch{{count={count}}}")
    return str(module), import_graph(module)


def planned(graph: Graph, stages: int, **options: float) -> StagePlan:
    seconds = [
        1e-6 * (1 + 9 * (op.name == "stablehlo.dot_general")) * op.trips if op.results else 0.0 for op in graph.ops
    ]
    byte_s = tuple(tuple(1e-12 * (a != b) for b in range(stages)) for a in range(stages))
    return plan_step(graph, seconds, StageMachine(stages, byte_s=byte_s))


def dots(graph: Graph, plan: StagePlan) -> dict[str, list[int]]:
    """Stages of the dots of each phase, in program order."""
    found: dict[str, list[int]] = {"forward": [], "backward": []}
    for op in graph.ops:
        if op.name == "stablehlo.dot_general":
            found[plan.phase_of_op[op.index]].append(plan.stage_of_op[op.index])
    return found


def check_invariants(graph: Graph, plan: StagePlan) -> None:
    """Every op has its place, and what it reads is made where the rules of stages allow."""
    step = read_step(graph)
    place = {v: i for i in step.body for v in graph.ops[i].results}
    parts = {v for found in plan.sums.values() for v in found}
    for i in (*step.before, *step.body, *step.after):
        s, phase = plan.stage_of_op[i], plan.phase_of_op[i]
        assert (s >= 0) == (not step.cloned[i]) == bool(phase)
        for v in step.reads[i] if s >= 0 and i in step.body else ():
            if v in place and not step.cloned[place[v]]:
                made = place[v]
                assert (plan.phase_of_op[made], phase) != ("backward", "forward")
                if plan.phase_of_op[made] == phase == "forward":
                    assert plan.stage_of_op[made] <= s
                if plan.phase_of_op[made] == phase == "backward" and v not in parts:
                    assert plan.stage_of_op[made] >= s
    for k, sums in step.gradients.items():
        for c in sums:
            made = graph.values[step.carries[c].yielded].producer
            assert plan.stage_of_op[made] == plan.stage_of_argument[k]


def remat_chain(params: Params, x: jax.Array) -> jax.Array:
    for name in sorted(params):
        x = jax.checkpoint(lambda x, w: jnp.tanh(x @ w))(x, params[name])
    return x


def tied(params: Params, x: jax.Array) -> jax.Array:
    return chain({k: v for k, v in params.items() if k != "w0"}, x @ params["w0"]) @ params["w0"].T


def towers(params: Params, x: jax.Array) -> jax.Array:
    names = sorted(params)
    half = len(names) // 2
    return chain({k: params[k] for k in names[:half]}, x) * chain({k: params[k] for k in names[half:]}, x + 1)


def nbytes(graph: Graph, sent: StageTransfer) -> int:
    return graph.values[sent.value].nbytes


@pytest.mark.parametrize("loss_too", [True, False])
def test_backward_mirrors_forward(loss_too: bool) -> None:
    _, graph = split_graph(trained(chain, loss_too), layers(8))
    plan = planned(graph, 4)
    check_invariants(graph, plan)
    found = dots(graph, plan)
    assert found["forward"] == [0, 0, 1, 1, 2, 2, 3, 3]
    # The gradient of each weight, and of each input but the first.
    assert found["backward"] == [3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0]
    assert plan.solution.status == "optimal"
    moved = {(t.phase, t.src, t.dst): nbytes(graph, t) for t in plan.transfers if t.phase in ("forward", "backward")}
    rows = BATCH // 4 * WIDTH * 4
    assert moved == {("forward", s, s + 1): rows for s in range(3)} | {("backward", s + 1, s): rows for s in range(3)}


def test_what_is_computed_again_is_backward() -> None:
    _, graph = split_graph(trained(remat_chain), layers(6))
    plan = planned(graph, 3)
    check_invariants(graph, plan)
    found = dots(graph, plan)
    assert len(found["forward"]) == 6
    assert found["forward"] == [0, 0, 1, 1, 2, 2]
    assert sorted(found["backward"]) == found["backward"][::-1]


@pytest.mark.parametrize("frozen", [("w0", "w1"), ("w6", "w7")])
def test_frozen_layers_are_cut_like_others(frozen: tuple[str, ...]) -> None:
    _, graph = split_graph(trained(chain, frozen=frozen), layers(8))
    plan = planned(graph, 4)
    check_invariants(graph, plan)
    found = dots(graph, plan)
    assert found["forward"] == sorted(found["forward"])
    assert set(found["forward"]) == {0, 1, 2, 3}


FINISHED_BEHIND = """
func.func @main(%w: tensor<8x8xf32> {rhino.role = "param"}, %t: tensor<4xf32> {rhino.role = "param"},
                %x: tensor<2x8xf32> {rhino.role = "batch"}) -> (tensor<8x8xf32>, tensor<4xf32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %z0 = stablehlo.constant dense<0.0> : tensor<8x8xf32>
  %z1 = stablehlo.constant dense<0.0> : tensor<2x8xf32>
  %tt = stablehlo.broadcast_in_dim %t, dims = [1] : (tensor<4xf32>) -> tensor<4x4xf32>
  %bias = stablehlo.reshape %tt : (tensor<4x4xf32>) -> tensor<2x8xf32>
  %r:3 = stablehlo.while(%i = %c0, %a0 = %z0, %a1 = %z1) : tensor<i32>, tensor<8x8xf32>, tensor<2x8xf32>
      attributes {rhino.microbatches = {count = 1 : i64}}
  cond {
    %more = stablehlo.compare LT, %i, %c1 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
        : (tensor<2x8xf32>, tensor<8x8xf32>) -> tensor<2x8xf32>
    %y = stablehlo.multiply %h, %bias : tensor<2x8xf32>
    %d = stablehlo.multiply %y, %bias : tensor<2x8xf32>
    %g = stablehlo.dot_general %x, %d, contracting_dims = [0] x [0]
        : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<8x8xf32>
    %gt = stablehlo.multiply %y, %h : tensor<2x8xf32>
    %n0 = stablehlo.add %a0, %g : tensor<8x8xf32>
    %n1 = stablehlo.add %a1, %gt : tensor<2x8xf32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %n0, %n1 : tensor<i32>, tensor<8x8xf32>, tensor<2x8xf32>
  }
  %u0 = stablehlo.subtract %w, %r#1 : tensor<8x8xf32>
  %parts = stablehlo.reshape %r#2 : (tensor<2x8xf32>) -> tensor<4x4xf32>
  %gathered = stablehlo.reduce(%parts init: %z) applies stablehlo.add across dimensions = [0]
      : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
  %u1 = stablehlo.subtract %t, %gathered : tensor<4xf32>
  return %u0, %u1 : tensor<8x8xf32>, tensor<4xf32>
}
"""


def test_a_gradient_that_is_finished_behind_the_loop_is_known() -> None:
    graph = import_graph(module_after(FINISHED_BEHIND, "rhino-verify"))
    assert read_step(graph).gradients == {0: (0,), 1: (1,)}


def test_without_gradients_everything_is_forward() -> None:
    text = lowered(lambda params, x, y: chain(params, x) - y, layers(4), *arrays((BATCH, WIDTH), (BATCH, WIDTH)))
    graph = import_graph(module_after(text, "rhino-split-microbatch{count=2}"))
    plan = planned(graph, 2)
    check_invariants(graph, plan)
    assert dots(graph, plan) == {"forward": [0, 0, 1, 1], "backward": []}


def test_towers_are_cut_as_well_as_any_order_allows() -> None:
    _, graph = split_graph(trained(towers), layers(8))
    ready = prepare_step(graph)
    seconds = [1e-6 if op.name == "stablehlo.dot_general" else 1e-9 for op in graph.ops]
    links = tuple(tuple(1e-12 * (a != b) for b in range(3)) for a in range(3))
    _, problem = stage_problem(ready, seconds, [v.nbytes for v in graph.values], StageMachine(3, byte_s=links))
    ours = plan_stages(problem)
    assert (ours.status, ours.method) == ("optimal", "ideals")
    cuts = [best_linear_cut(problem, order) for _, order in orders(problem, 8)]
    objectives = [cut.objective_s for cut in cuts if cut is not None]
    assert ours.objective_s <= min(objectives) * (1 + 1e-9)
    assert min(objectives) < max(objectives)


def test_a_tied_parameter_is_sent_once_and_its_parts_add_up_once() -> None:
    _, graph = split_graph(trained(tied), layers(6))
    plan = planned(graph, 3)
    check_invariants(graph, plan)
    assert len(plan.sums) == 1
    weight = WIDTH * WIDTH * 4
    assert [(t.src, t.dst, nbytes(graph, t)) for t in plan.transfers if t.phase == "prepare"] == [(0, 2, weight)]
    assert [
        (t.src, t.dst, nbytes(graph, t)) for t in plan.transfers if t.phase == "update" and nbytes(graph, t) == weight
    ] == [(2, 0, weight)]


def test_a_global_norm_costs_one_scalar_per_stage() -> None:
    _, graph = split_graph(trained(chain, clip=True), layers(8))
    plan = planned(graph, 4)
    check_invariants(graph, plan)
    assert [sorted(set(c.stages)) for c in plan.combinations] == [[0, 1, 2, 3]]
    assert len(plan.combinations[0].leaves) == 9  # eight norms, and the zero that Python's sum begins with
    home = plan.combinations[0].home
    updates = [t for t in plan.transfers if t.phase == "update"]
    assert {nbytes(graph, t) for t in updates} == {4}
    assert sorted((t.src, t.dst) for t in updates if t.dst == home) == [(s, home) for s in range(4) if s != home]


def uneven(graph: Graph, stages: int) -> StagePlan:
    """As `planned`, were the first products of the program far dearer than the rest."""
    first = [op.index for op in graph.ops if op.name == "stablehlo.dot_general"][:2]
    seconds = [1e-4 * (op.index in first) + 1e-6 * bool(op.results) for op in graph.ops]
    byte_s = tuple(tuple(1e-12 * (a != b) for b in range(stages)) for a in range(stages))
    return plan_step(graph, seconds, StageMachine(stages, byte_s=byte_s))


def pin(graph: Graph, plan: StagePlan) -> None:
    """Leave state where a plan has it."""
    held = zip(graph.arguments, plan.stage_of_argument, strict=True)
    graph.stages = {argument.value: stage for argument, stage in held if stage >= 0}


@pytest.mark.parametrize("network", [chain, tied, towers, remat_chain])
@pytest.mark.parametrize("stages", [2, 4])
def test_what_is_pinned_stays_where_it_is_when_costs_change(network: Callable[..., Any], stages: int) -> None:
    _, graph = split_graph(trained(network, clip=True), layers(8))
    first, free = planned(graph, stages), uneven(graph, stages)
    assert free.stage_of_argument != first.stage_of_argument
    pin(graph, first)
    kept = uneven(graph, stages)
    check_invariants(graph, kept)
    assert kept.stage_of_argument == first.stage_of_argument


def test_without_gradients_a_parameter_is_read_where_it_is() -> None:
    _, trained_graph = split_graph(trained(tied), layers(8))
    found = planned(trained_graph, 2)
    text = lowered(lambda params, x, y: jnp.mean((tied(params, x) - y) ** 2), layers(8), *arrays((BATCH, WIDTH)) * 2)
    graph = import_graph(module_after(text, "rhino-split-microbatch{count=2}"))
    assert uneven(graph, 2).stage_of_argument != found.stage_of_argument
    pin(graph, found)
    assert uneven(graph, 2).stage_of_argument == found.stage_of_argument


def test_pins_against_the_order_of_the_program_name_both_arguments() -> None:
    _, graph = split_graph(trained(chain), layers(4))
    graph.stages = {graph.arguments[1].value: 1, graph.arguments[2].value: 0}
    names = [graph.arguments[k].name for k in (1, 2)]
    with pytest.raises(RhinoError) as raised:
        planned(graph, 2)
    assert raised.value.message.startswith(f"no stages leave {names[0]} on stage 1 and {names[1]} on stage 0")


def test_two_stages_for_what_one_operation_reads_are_refused() -> None:
    def joined(params: Params, x: jax.Array) -> jax.Array:
        return jnp.tanh(jnp.tanh(x @ (params["w0"] + params["w1"])) @ params["w2"])

    _, graph = split_graph(trained(joined), layers(3))
    graph.stages = {graph.arguments[0].value: 0, graph.arguments[1].value: 1}
    with pytest.raises(RhinoError, match=r"no stages leave .* on stage 1 and .* on stage 0: one operation keeps both"):
        planned(graph, 2)


def test_a_step_without_the_loop_or_roles_is_refused() -> None:
    graph = Graph()
    with pytest.raises(RhinoError, match="no micro-batch loop"):
        prepare_step(graph)
    _, graph = split_graph(trained(chain), layers(2))
    for argument in graph.arguments:
        argument.role = "other"
    with pytest.raises(RhinoError, match="no argument of @main is a parameter"):
        prepare_step(graph)


@pytest.mark.parametrize("network", [chain, tied, towers, remat_chain])
@pytest.mark.parametrize("stages", [2, 3])
def test_stages_in_fragments_compute_the_same(network: Callable[..., Any], stages: int) -> None:
    params = layers(4)
    inputs = [*map(np.asarray, jax.tree.leaves(params)), *arrays((BATCH, WIDTH), (BATCH, WIDTH))]
    text = lowered(trained(network, clip=True), params, *inputs[-2:])
    legal = "func.func(chlo-legalize-to-stablehlo)"
    before = interpreted(module_after(text, legal), inputs)
    options = f"stages={stages} topology=dgx-h100:1 balance=0.9"
    module = module_after(text, "rhino-split-microbatch{count=4}", f"rhino-plan-stages{{{options}}}", legal)
    agree(interpreted(module, inputs), before, rtol=1e-4)
    fragments = module_after(str(module), "rhino-form-fragments", "rhino-schedule", "rhino-verify")
    agree(run_fragments(fragments, inputs), before, rtol=1e-4)
