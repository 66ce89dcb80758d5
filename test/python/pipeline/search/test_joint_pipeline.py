"""Which part of a backward can wait, and what a pipeline's costs add up to."""

from __future__ import annotations

import pytest
from joint_programs import programs

from rhino.machine import Cluster
from rhino.pipeline.search.options import JointOptions
from rhino.pipeline.search.pipeline import weight_ops
from rhino.pipeline.search.search import plan_jointly
from rhino.pipeline.search.solution import PipelineCandidate

LAYERS = 4


@pytest.fixture(scope="module")
def found() -> PipelineCandidate:
    options = JointOptions(stages=2, microbatches=4, mesh=((2,),), schedule="1f1b")
    return plan_jointly(programs(LAYERS, batch=64, width=256), Cluster.load("dgx-h100:1"), options).best


def test_what_another_stage_waits_for_is_not_delayed(found: PipelineCandidate) -> None:
    graph, plan = found.prepared.graph, found.stages
    delayed = weight_ops(graph, plan)
    assert delayed
    sent = {t.value for t in plan.transfers if t.phase == "backward"}
    assert sent
    assert all(sent.isdisjoint(graph.ops[o].results) for o in delayed)
    assert {plan.phase_of_op[o] for o in delayed} == {"backward"}
    # On stage 1 gradients and their sums can wait, what goes on to stage 0 cannot; stage 0 sends nothing on.
    loop = graph.microbatch_loop
    inside = [op for op in graph.ops[loop + 1 : graph.ops[loop].region_end] if op.parent == loop]
    backward = [op for op in inside if plan.phase_of_op[op.index] == "backward"]
    sums = [op for op in backward if op.name == "stablehlo.add"]
    assert len(sums) == LAYERS
    assert all((op.index in delayed) == (plan.stage_of_op[op.index] == 1) for op in sums)
    assert not [op for op in backward if plan.stage_of_op[op.index] == 0 and op.index in delayed]
    dots = [op.index for op in backward if op.name == "stablehlo.dot_general" and plan.stage_of_op[op.index] == 1]
    owned = sum(plan.stage_of_op[op.index] == 1 for op in sums)
    assert len([o for o in dots if o in delayed]) == owned


def test_seconds_of_stages_are_those_of_their_ops(found: PipelineCandidate) -> None:
    loads, seconds = found.pipeline.loads, found.layout_of(0).seconds
    # Less what every stage computes for itself: its part of the batch.
    plan = found.stages
    own = [s for s, stage, phase in zip(seconds.compute, plan.stage_of_op, plan.phase_of_op, strict=True)
           if stage < 0 or not phase]  # fmt: skip
    assert sum(loads.compute) == pytest.approx(sum(seconds.compute) - sum(own), rel=1e-6)
    assert sum(own) < 0.02 * sum(seconds.compute)
    parts = found.shape.parts
    looped = sum(map(sum, zip(loads.forward, loads.backward, loads.weight, strict=True))) * parts
    once = sum(loads.prepare) + sum(loads.update)
    assert looped + once == pytest.approx(sum(loads.compute) + sum(loads.comm))
    whole = found.pipeline.costs.backward_s
    assert whole == tuple(b + w for b, w in zip(loads.backward, loads.weight, strict=True))


def test_replicas_sum_their_gradients_once_a_step(found: PipelineCandidate) -> None:
    assert found.shape.replicas == 2
    assert all(s > 0 for s in found.pipeline.replicas.seconds)
    update = zip(
        found.pipeline.costs.apply_s, found.pipeline.loads.update, found.pipeline.replicas.seconds, strict=True
    )
    assert all(apply >= own + summed for apply, own, summed in update)
