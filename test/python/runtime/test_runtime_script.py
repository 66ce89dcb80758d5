"""Scripts: one order out of all lists, buffers dropped after their last use, and what may be donated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rhino.errors import RhinoError
from rhino.pipeline.program import (
    Fragment,
    GroupMesh,
    GroupValue,
    PipelineProgram,
    Result,
    StageArgument,
    StageCarry,
    Transfer,
)
from rhino.pipeline.schedule import PipelineCosts, ScheduledStep, Task, make_schedule
from rhino.runtime.script import UNREAD, MoveValue, RunFragment, Script, make_script

MICROBATCHES = 6


def chain(stages: int, microbatches: int = MICROBATCHES, groups: int = 0) -> PipelineProgram:
    """Stages that pass a value forwards and back, each with one weight, and a sum that starts as a zero value."""
    groups = groups or stages
    values: list[GroupValue] = []

    def value(stage: int, scope: str) -> int:
        values.append(GroupValue(len(values), stage % groups, (4,), "f32", ((),), scope))
        return len(values) - 1

    weights = [value(s, "step") for s in range(stages)]
    zeros = [value(s, "step") for s in range(stages)]
    sums = [value(s, "microbatch") for s in range(stages)]
    following = [value(s, "microbatch") for s in range(stages)]
    totals = [value(s, "step") for s in range(stages)]
    updated = [value(s, "step") for s in range(stages)]
    before = [Fragment(s, "prepare", s, s % groups, 0, (), (zeros[s],)) for s in range(stages)]
    body: list[Fragment | Transfer] = []
    arriving: list[tuple[int, ...]] = [()] * stages
    saved = [value(s, "microbatch") for s in range(stages)]
    out = [value(s, "microbatch") for s in range(stages)]
    count = 0
    for s in range(stages):
        body.append(Fragment(stages + s, "forward", s, s % groups, 0, (weights[s], *arriving[s]), (saved[s], out[s])))
        if s + 1 < stages:
            there = value(s + 1, "microbatch")
            arriving[s + 1] = (there,)
            body.append(Transfer(count, out[s], there, "forward", 0, s, s + 1))
            count += 1
    gradient: tuple[int, ...] = (out[-1],)
    for s in reversed(range(stages)):
        made = value(s, "microbatch")
        operands = (weights[s], saved[s], *gradient, sums[s])
        body.append(Fragment(3 * stages - 1 - s, "backward", s, s % groups, 0, operands, (made, following[s])))
        if s:
            there = value(s - 1, "microbatch")
            body.append(Transfer(count, made, there, "backward", 0, s, s - 1))
            gradient = (there,)
            count += 1
    after = [
        Fragment(3 * stages + s, "update", s, s % groups, 0, (weights[s], totals[s]), (updated[s],))
        for s in range(stages)
    ]
    return PipelineProgram(
        stages=stages,
        microbatches=microbatches,
        meshes=tuple(GroupMesh(f"stage{g}", (), (g,)) for g in range(groups)),
        values=tuple(values),
        arguments=tuple(StageArgument(w, s, (), -1, True) for s, w in enumerate(weights)),
        results=tuple(Result(u, s, ()) for s, u in enumerate(updated)),
        before=tuple(before),
        body=tuple(body),
        after=tuple(after),
        carries=tuple(StageCarry(zeros[s], sums[s], following[s], totals[s], s) for s in range(stages)),
        counters=(-1,) * groups,
    )


def play(script: Script) -> list[int]:
    """Goes through a script as the executor does; returns the most slots in use. Reading what is not there fails."""
    full = [False] * script.slots
    for slot in (*script.arguments, *(slot for slot, _, _ in script.counters)):
        full[slot] = True
    most = []
    for action in script.actions:
        read = action.operands if isinstance(action, RunFragment) else (action.source,)
        made = action.results if isinstance(action, RunFragment) else (action.target,)
        assert all(full[slot] for slot in read), f"{action} reads what is not there"
        for slot in action.dead:
            full[slot] = False
        for slot in made:
            if slot != UNREAD:
                assert not full[slot], f"{action} overwrites slot {slot}"
                full[slot] = True
        most.append(sum(full))
    assert all(full[slot] for slot in script.results)
    for slot in set(range(script.slots)) - set(script.results) - {slot for slot, _, _ in script.counters}:
        assert not full[slot], f"slot {slot} is never dropped"
    return most


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "eager-1f1b"])
@pytest.mark.parametrize("stages", [1, 2, 5])
def test_everything_is_there_when_read_and_dropped_after(name: str, stages: int) -> None:
    program = chain(stages)
    script = make_script(program, make_schedule(name, PipelineCosts.uniform(stages, 1.0, 2.0), MICROBATCHES))
    play(script)
    calls = [action for action in script.actions if isinstance(action, RunFragment)]
    assert len(calls) == stages * (2 + 2 * MICROBATCHES)
    assert sum(isinstance(a, MoveValue) for a in script.actions) == 2 * (stages - 1) * MICROBATCHES


def test_each_group_keeps_the_order_of_its_list() -> None:
    schedule = make_schedule("1f1b", PipelineCosts.uniform(4, 1.0, 2.0), MICROBATCHES)
    script = make_script(chain(4), schedule)
    for group, tasks in enumerate(schedule.tasks):
        wanted = [task for task in tasks if task.kind in ("prepare", "forward", "backward", "apply")]
        assert [a.task for a in script.actions if isinstance(a, RunFragment) and a.group == group] == wanted


def test_1f1b_keeps_fewer_buffers_than_gpipe() -> None:
    costs = PipelineCosts.uniform(3, 1.0, 2.0)
    most = {name: max(play(make_script(chain(3, 16), make_schedule(name, costs, 16)))) for name in ("gpipe", "1f1b")}
    assert most["1f1b"] < most["gpipe"] / 2


def test_stages_of_one_group_share_buffers_without_copies() -> None:
    program = chain(4, groups=2)
    schedule = make_schedule("interleaved-1f1b", PipelineCosts.uniform(4, 1.0, 2.0, groups=2), MICROBATCHES)
    script = make_script(program, schedule)
    play(script)
    # Every hop of this chain is between the two groups.
    assert sum(isinstance(a, MoveValue) for a in script.actions) == 6 * MICROBATCHES
    alone = chain(2, groups=1)
    tasks = [Task("prepare", s, level=0) for s in (0, 1)]
    for m in range(MICROBATCHES):
        tasks += [Task(kind, s, m) for kind, s in (("forward", 0), ("forward", 1), ("backward", 1), ("backward", 0))]
    tasks += [Task("apply", s, level=0) for s in (0, 1)]
    script = make_script(alone, ScheduledStep("by hand", 2, MICROBATCHES, (tuple(tasks),)))
    play(script)
    assert not any(isinstance(a, MoveValue) for a in script.actions)


def test_what_dies_in_every_call_is_donated() -> None:
    program = chain(2)
    script = make_script(program, make_schedule("1f1b", PipelineCosts.uniform(2, 1.0, 2.0), MICROBATCHES))
    for fragment in program.fragments:
        if fragment.kind == "backward":
            # The weight is read again; saved values, the gradient and the sum are not.
            assert script.donated[fragment.index] == (1, 2, 3)
        if fragment.kind == "update":
            assert script.donated[fragment.index] == (0, 1)


def test_an_argument_that_the_caller_keeps_is_not_donated() -> None:
    program = chain(2)
    program = replace(program, arguments=tuple(replace(a, donated=False) for a in program.arguments))
    script = make_script(program, make_schedule("1f1b", PipelineCosts.uniform(2, 1.0, 2.0), MICROBATCHES))
    assert [script.donated[f.index] for f in program.fragments if f.kind == "update"] == [(1,), (1,)]


def test_a_sum_starts_from_a_copy_of_what_is_needed_elsewhere() -> None:
    program = chain(1)
    carry = program.carries[0]
    # The step returns the zeros, too.
    program = replace(program, results=(*program.results, Result(carry.initial, 1, ())))
    script = make_script(program, make_schedule("1f1b", PipelineCosts.uniform(1, 1.0, 2.0), MICROBATCHES))
    play(script)
    copies = [a for a in script.actions if isinstance(a, MoveValue)]
    assert len(copies) == 1
    assert copies[0].transfer == -1
    backward = next(f for f in program.fragments if f.kind == "backward")
    assert script.donated[backward.index] == (1, 2, 3)


def test_two_results_that_are_one_value_get_two_buffers() -> None:
    program = chain(1)
    program = replace(program, results=(*program.results, replace(program.results[0], index=1)))
    script = make_script(program, make_schedule("1f1b", PipelineCosts.uniform(1, 1.0, 2.0), MICROBATCHES))
    play(script)
    assert script.results[0] != script.results[1]


def test_transfers_that_the_schedule_does_not_name_follow_their_source() -> None:
    program = chain(2)
    schedule = make_schedule("gpipe", PipelineCosts.uniform(2, 1.0, 2.0), MICROBATCHES)
    tasks = tuple(tuple(t for t in group if t.kind not in ("send", "recv")) for group in schedule.tasks)
    script = make_script(program, replace(schedule, tasks=tasks))
    play(script)
    assert sum(isinstance(a, MoveValue) for a in script.actions) == 2 * MICROBATCHES


def test_lists_that_wait_for_each_other_are_refused() -> None:
    schedule = make_schedule("1f1b", PipelineCosts.uniform(2, 1.0, 2.0), MICROBATCHES)
    last = list(schedule.tasks[1])
    last.insert(0, last.pop(next(i for i, t in enumerate(last) if t.kind == "backward")))
    with pytest.raises(RhinoError, match=r"wait for each other.*backward of stage 1, micro-batch 0"):
        make_script(chain(2), replace(schedule, tasks=(schedule.tasks[0], tuple(last))))


def test_a_schedule_that_leaves_something_out_is_refused() -> None:
    schedule = make_schedule("1f1b", PipelineCosts.uniform(2, 1.0, 2.0), MICROBATCHES)
    tasks = tuple(tuple(t for t in group if (t.kind, t.stage) != ("apply", 1)) for group in schedule.tasks)
    with pytest.raises(RhinoError, match="result 1"):
        make_script(chain(2), replace(schedule, tasks=tasks))


def test_a_schedule_for_another_pipeline_is_refused() -> None:
    schedule = make_schedule("1f1b", PipelineCosts.uniform(3, 1.0, 2.0), MICROBATCHES)
    with pytest.raises(RhinoError, match="3 stages and 6 micro-batches, and the program 2 and 6"):
        make_script(chain(2), schedule)
