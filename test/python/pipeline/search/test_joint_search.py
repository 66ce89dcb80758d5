"""The joint search: nothing it could be asked for is much better, it keeps the limit, and says the same twice."""

from __future__ import annotations

from dataclasses import replace
from heapq import heappop

import pytest
from joint_programs import programs

from rhino.deadline import Deadline
from rhino.errors import RhinoError
from rhino.ir.microbatch.programs import SplitPrograms
from rhino.machine import Cluster
from rhino.pipeline.search.candidates import Shape, shapes
from rhino.pipeline.search.options import JointOptions
from rhino.pipeline.search.planned import Planner
from rhino.pipeline.search.search import JointSearch, plan_jointly
from rhino.pipeline.search.solution import JointSolution

CLUSTER = Cluster.load("dgx-h100:1")


@pytest.fixture(scope="module")
def step() -> SplitPrograms:
    return programs(4, batch=8192, width=8192)


@pytest.fixture(scope="module")
def best(step: SplitPrograms) -> JointSolution:
    return plan_jointly(step, CLUSTER, JointOptions())


def test_the_same_answer_twice(best: JointSolution) -> None:
    again = plan_jointly(programs(4, batch=8192, width=8192), CLUSTER, JointOptions())
    assert again.best.name == best.best.name
    assert again.best.schedule == best.best.schedule
    assert again.best.simulation == best.best.simulation
    assert again.alternatives == best.alternatives
    assert (again.candidates, again.bound_s) == (best.candidates, best.bound_s)


def test_nothing_it_could_be_asked_for_is_much_faster(step: SplitPrograms, best: JointSolution) -> None:
    asked = 0
    # Not every number of parts is tried.
    for stages in (2, 4):
        for microbatches in (1, 2, 4, 8, 32, 128):
            try:
                found = plan_jointly(step, CLUSTER, JointOptions(stages=stages, microbatches=microbatches))
            except RhinoError:
                continue
            asked += 1
            assert found.best.shape.stages == stages
            assert found.best.shape.microbatches == microbatches
            assert best.best.step_time_s <= found.best.step_time_s * 1.1
    assert asked >= 10


def test_the_bound_is_below_what_was_found(best: JointSolution) -> None:
    assert 0 < best.bound_s <= best.best.step_time_s
    assert 0 <= best.gap < 1
    assert all(best.best.step_time_s <= a.step_time_s for a in best.alternatives if not a.why.startswith("does not"))
    shape = best.best.shape
    assert shape.groups * shape.replicas * shape.width == CLUSTER.num_devices
    assert best.best.schedule.microbatches == shape.microbatches


def test_asking_for_a_schedule_gives_it(step: SplitPrograms) -> None:
    found = plan_jointly(step, CLUSTER, JointOptions(stages=2, schedule="gpipe"))
    assert found.best.schedule.name == "gpipe"
    assert {a.name.rpartition(", ")[2] for a in found.alternatives} <= {"gpipe"}


def test_the_limit_is_kept(step: SplitPrograms, best: JointSolution) -> None:
    limit = best.best.peak_bytes * 3 // 4
    tight = plan_jointly(step, CLUSTER, JointOptions(memory_limit=limit))
    assert tight.best.peak_bytes <= limit
    assert tight.best.step_time_s >= best.best.step_time_s * 0.95
    state = 2 * 4 * 8192 * 8192 * 4 // 8  # parameters and gradients over all devices
    with pytest.raises(RhinoError, match=r"no pipeline fits in 192 MiB per device on dgx-h100:1: .* take 256 MiB"):
        plan_jointly(step, CLUSTER, JointOptions(memory_limit=state * 3 // 4))
    with pytest.raises(RhinoError, match=r"no pipeline fits in 272 MiB per device on dgx-h100:1: .* needs .* MiB"):
        plan_jointly(step, CLUSTER, JointOptions(memory_limit=state * 17 // 16))


def test_out_of_time_it_takes_what_it_has(step: SplitPrograms, best: JointSolution) -> None:
    seen: list[tuple[int, int, str]] = []
    hasty = plan_jointly(step, CLUSTER, JointOptions(deadline=Deadline(at_s=-1.0)), lambda *args: seen.append(args))
    assert hasty.candidates == 1
    assert [done for done, _, _ in seen] == [0]
    assert hasty.best.step_time_s >= best.best.step_time_s


@pytest.mark.parametrize(
    ("options", "message", "remedy"),
    [
        (JointOptions(stages=9), "9 stages for the 8 devices", "from 1 to 8"),
        (
            JointOptions(stages=3, mesh=((2,),)),
            r"3 stages on the 8 devices .* have 3\+3\+2 of them, which no one",
            "divides",
        ),
        (JointOptions(stages=8), "8 stages, but the step can be divided into 7 units at most", "another number"),
        (
            JointOptions(microbatches=7),
            "batch of 8192 examples cannot be cut into 7 equal micro-batches",
            "divides the batch",
        ),
        (JointOptions(mesh=((3,),)), "no pipeline of mesh 3 uses", "another"),
        (JointOptions(stages=-1), "stages -1 is negative", "positive"),
        (JointOptions(memory_limit=-1), "memory-limit -1 is negative", "positive"),
        (JointOptions(schedule="2f2b"), "'2f2b' is not among", "interleaved-1f1b"),
        (JointOptions(stages=3, schedule="interleaved-1f1b"), "3 stages cannot be interleaved", "4, 6 or another"),
        (JointOptions(stages=4, groups=3), "4 stages cannot be dealt to 3 groups", "divides"),
        (JointOptions(groups=2), "any number of stages cannot be dealt to 2 groups", "number of stages"),
    ],
)
def test_refusals_name_the_cause(step: SplitPrograms, options: JointOptions, message: str, remedy: str) -> None:
    with pytest.raises(RhinoError, match=message) as refused:
        plan_jointly(step, CLUSTER, options)
    assert remedy in refused.value.remedy


def test_more_devices_than_a_host_has(step: SplitPrograms) -> None:
    found = plan_jointly(step, Cluster.load("dgx-h100:2"), replace(JointOptions(), stages=4))
    shape = found.best.shape
    assert (shape.stages, shape.replicas * shape.width) == (4, 4)
    # Stages 1 and 2 are on different hosts.
    links = {link for edge in found.best.pipeline.costs.edges for link in edge.forward_links}
    assert {"nic0>", ">nic1"} <= links


def test_stages_of_different_widths() -> None:
    # Large enough that no stage is better left empty.
    found = plan_jointly(programs(4, batch=8192, width=4096), CLUSTER, JointOptions(stages=3)).best
    assert found.shape.widths == (3, 3, 2)
    assert set(found.layouts) == {3, 2}
    assert [found.layout_of(s).solution.mesh for s in range(3)] == [(("x", 3),), (("x", 3),), (("x", 2),)]
    # Of a chain of four equal layers, the widest stages have no fewer than the others.
    backward = found.pipeline.costs.backward_s
    assert all(b > 0 for b in backward)
    assert max(found.pipeline.loads.compute) < 0.75 * sum(found.pipeline.loads.compute)
    assert found.peak_bytes == max(found.pipeline.peak_bytes(found.simulation.in_flight_peak))


def test_the_limit_is_kept_by_stages_of_different_widths(step: SplitPrograms) -> None:
    free = plan_jointly(step, CLUSTER, JointOptions(stages=3)).best
    limit = free.peak_bytes * 9 // 10
    assert plan_jointly(step, CLUSTER, JointOptions(stages=3, memory_limit=limit)).best.peak_bytes <= limit


def test_unequal_stages_where_equal_ones_are_too_many() -> None:
    """Eleven devices divide into eleven stages only, and two layers do not."""
    data = CLUSTER.to_dict()
    data["devices_per_host"] = data["levels"][0]["size"] = 11
    eleven = Cluster.from_dict(data)
    best = plan_jointly(programs(2, batch=64, width=1024), eleven, JointOptions()).best
    assert len(best.shape.distinct) == 2 and best.shape.devices == 11


@pytest.mark.parametrize(("batch", "found"), [(8, 4), (6, 3), (7, 1), (1, 1)])
def test_fewer_microbatches_are_the_most_that_divide_the_batch(batch: int, found: int) -> None:
    taken = list(shapes(Cluster.load("cpu:1"), batch, stages=2, microbatches=4, fewer=True))
    assert {shape.microbatches for shape in taken if shape.replicas == 1} == {found}


def test_writing_is_told_by_what_was_cut_and_by_the_tasks(step: SplitPrograms) -> None:
    def writing_s(stages: int, parts: int, cut_s: float) -> float:
        shape = Shape((1,) * stages, 1, parts)
        return Planner(step, CLUSTER, JointOptions(cut_s=cut_s), 1).writing_s(shape)

    cut, uncut = step.example.graph.microbatches, 3
    assert step.is_cut(cut) and not step.is_cut(uncut)
    assert writing_s(2, cut, 0.0) == 0.0
    # A program that was only derived is cut once more.
    fragments_s = writing_s(0, cut, 8.0)
    assert writing_s(0, uncut, 8.0) == fragments_s + 8.0
    lists_s = writing_s(1, cut, 8.0) - fragments_s
    assert lists_s > 0 and writing_s(4, cut, 8.0) == pytest.approx(fragments_s + 4 * lists_s)
    assert writing_s(4, cut, 2.0) == pytest.approx(writing_s(4, cut, 8.0) / 4)


def test_what_takes_more_than_half_of_the_time_to_write_comes_last(step: SplitPrograms) -> None:
    options = JointOptions(stages=4, deadline=Deadline(at_s=30.0, clock=lambda: 0.0), cut_s=1.0)
    search = JointSearch(step, CLUSTER, options, lambda done, total, label: None)
    drafts = search.drafts()
    order = [search.planner.writing_s(heappop(drafts).shape) > 15.0 for _ in range(len(drafts))]
    assert order == sorted(order) and {*order} == {False, True}
