"""Interleaved stages: which shapes there are, what a group of devices holds, and that they are chosen where faster."""

from __future__ import annotations

import pytest
from joint_programs import programs

from rhino.ir.microbatch.programs import SplitPrograms
from rhino.machine import Cluster
from rhino.machine.host import task_start_seconds
from rhino.pipeline.schedule import SCHEDULES, check, interleaved_in_flight
from rhino.pipeline.schedule.interleaved import interleaved_order
from rhino.pipeline.search.candidates import Shape, shapes
from rhino.pipeline.search.options import JointOptions
from rhino.pipeline.search.search import plan_jointly
from rhino.pipeline.search.solution import PipelineCandidate

HOST = Cluster.load("dgx-h100:1")


@pytest.fixture(scope="module")
def step() -> SplitPrograms:
    return programs(8, batch=4096, width=4096)


def best(step: SplitPrograms, cluster: Cluster = HOST, **options: object) -> PipelineCandidate:
    return plan_jointly(step, cluster, JointOptions(**options)).best  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("groups", "chunks", "microbatches"), [(4, 2, 16), (4, 3, 10), (8, 2, 3), (2, 4, 64), (4, 2, 5)]
)
def test_in_flight_is_what_the_order_holds(groups: int, chunks: int, microbatches: int) -> None:
    stages = groups * chunks
    counted = interleaved_in_flight(stages, groups, microbatches)
    for group, order in enumerate(interleaved_order(stages, groups, microbatches)):
        now, most, together = [0] * stages, [0] * stages, 0
        for kind, stage, _ in order:
            now[stage] += 1 if kind == "forward" else -1
            most[stage] = max(most[stage], now[stage])
            together = max(together, sum(now))
        assert counted[group::groups] == tuple(most[group::groups])
        assert together <= sum(counted[group::groups]) <= together + 2 * chunks * chunks


def test_shapes_have_the_stages_asked_for_on_groups_that_use_all_devices() -> None:
    shares = JointOptions(stages=8, schedule="interleaved-1f1b").shares
    found = list(shapes(HOST, 16, stages=8, microbatches=4, shares=shares))
    assert {(s.groups, s.chunks) for s in found} == {(4, 2), (2, 4)}
    assert all(s.stages == 8 and s.devices == 8 for s in found)
    assert {s.chunks for s in shapes(HOST, 16, shares=(2,))} == {2}
    assert next(shapes(HOST, 16, stages=6, shares=(3,))).groups == 2
    shape = Shape((2, 2), 2, 16, chunks=2)
    assert (shape.stage_widths, shape.devices, shape.microbatches) == ((2, 2, 2, 2), 8, 8)
    assert shape.name == "4 stages on 2 groups of 2x2, 8 micro-batches"


@pytest.mark.parametrize(("cluster", "mesh"), [("dgx-h100:1", ()), ("p3.16xlarge:2", ((4,),))])
def test_no_schedule_that_one_can_ask_for_is_better(
    step: SplitPrograms, cluster: str, mesh: tuple[object, ...]
) -> None:
    where = Cluster.load(cluster)
    found = best(step, where, mesh=mesh)
    for name in SCHEDULES:
        assert found.step_time_s <= 1.02 * best(step, where, mesh=mesh, schedule=name).step_time_s, name


def test_what_is_asked_for_is_given(step: SplitPrograms) -> None:
    found = best(step, stages=8, schedule="interleaved-1f1b", microbatches=4)
    assert (found.shape.stages, found.schedule.name, found.shape.microbatches) == (8, "interleaved-1f1b", 4)
    assert found.shape.groups == len(found.schedule.tasks) == found.pipeline.costs.group_count < 8
    costs = found.pipeline.costs
    assert costs.groups == tuple(s % found.shape.groups for s in range(8))
    assert check(found.schedule, costs) == ()
    again = best(step, stages=8, groups=found.shape.groups, schedule="interleaved-1f1b", microbatches=4)
    assert again.simulation == found.simulation
    # Each task takes what its host takes to start one at least, and nothing travels within a group.
    assert costs.task_s == task_start_seconds(HOST, found.shape.groups)
    assert found.step_time_s >= max(found.simulation.busy_s)
    assert all(edge.forward_s == 0 for edge in costs.edges if costs.groups[edge.src] == costs.groups[edge.dst])


def test_a_group_holds_what_its_stages_hold(step: SplitPrograms) -> None:
    found = best(step, mesh=((4,),), stages=4, schedule="interleaved-1f1b", microbatches=4)
    costs, memory = found.pipeline.costs, found.pipeline.memory
    for group in range(found.shape.groups):
        held = sum(memory[s].argument_bytes for s in costs.stages_of(group))
        assert costs.static_bytes[group] >= held > max(memory[s].argument_bytes for s in costs.stages_of(group))
    assert found.peak_bytes <= max(found.pipeline.peak_bytes(found.shape.in_flight))
    limit = found.peak_bytes * 9 // 10
    assert best(step, mesh=((4,),), stages=4, schedule="interleaved-1f1b", memory_limit=limit).peak_bytes <= limit


def test_groups_that_wait_get_more_stages(step: SplitPrograms) -> None:
    # In so few micro-batches filling is most of what one stage on each group waits for; backward parts stay whole.
    alone = best(step, mesh=((2,),), microbatches=4, schedule="1f1b", stages=4)
    shared = best(step, mesh=((2,),), microbatches=4, schedule="interleaved-1f1b")
    assert shared.shape.chunks > 1
    assert shared.step_time_s < 0.9 * alone.step_time_s
