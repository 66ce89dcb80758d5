"""The checker: what generators make passes, on any graph of stages, and one changed task never does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_pipelines import GROUPED, mutate, mutations, pipelines

from rhino.pipeline.schedule import SCHEDULES, Edge, Exchange, PipelineCosts, ScheduledStep, Task, check, make_schedule

CHAIN = PipelineCosts.uniform(3, 1.0, 2.0, 0.5, weight_s=1.0)
# Two towers that join, a skip over the join, a frozen stage, and a stage that exchanges nothing.
BRANCHED = PipelineCosts(
    (1.0,) * 5,
    (2.0,) * 5,
    (1.0,) * 5,
    edges=(Edge(0, 2), Edge(1, 2), Edge(2, 3), Edge(0, 3, 1.0, None)),
    apply_levels=(1, 2, 1, 1, 1),
    prepare_levels=(1, 1, 2, 1, 1),
    exchanges=(
        Exchange("prepare", 0, 2), Exchange("prepare", 2, 3, 1), Exchange("backward", 3, 1), Exchange("weight", 2, 0),
        Exchange("forward", 3, 0), Exchange("apply", 0, 1),
    ),
)  # fmt: skip
SHARED = replace(BRANCHED, groups=(0, 1, 0, 1, 0), static_bytes=())


@st.composite
def schedules(draw: st.DrawFn) -> tuple[PipelineCosts, ScheduledStep]:
    """Any pipeline with any schedule that can run it."""
    costs = draw(pipelines(dealt=draw(st.booleans())))
    names = [n for n in SCHEDULES if n in GROUPED or costs.group_count == costs.stages]
    name = draw(st.sampled_from([n for n in names if n != "zero-bubble" or any(costs.weight_s)]))
    delay = draw(st.booleans()) if any(costs.weight_s) and name != "zero-bubble" else None
    k = draw(st.sampled_from((None, 1, 2, 3))) if name == "kfkb" else None
    return costs, make_schedule(name, costs, draw(st.integers(1, 9)), k=k, delay_weight=delay)


@settings(max_examples=150, deadline=None)
@given(schedules())
def test_generated_schedules_pass(made: tuple[PipelineCosts, ScheduledStep]) -> None:
    costs, schedule = made
    assert check(schedule, costs) == ()
    assert ScheduledStep.from_data(schedule.to_data()) == schedule


@settings(max_examples=150, deadline=None)
@given(schedules(), st.data())
def test_one_changed_task_is_rejected(made: tuple[PipelineCosts, ScheduledStep], data: st.DataObject) -> None:
    costs, schedule = made
    places = [(g, at) for g, tasks in enumerate(schedule.tasks) for at in range(len(tasks))]
    for how in ("drop", "repeat", "move", "swap"):
        first = data.draw(st.sampled_from(places))
        second = data.draw(st.sampled_from(places))
        changed = mutate(schedule, how, first, second)
        assert changed == schedule or check(changed, costs), (how, first, second)


ONE = PipelineCosts.uniform(1, 1.0, 2.0, weight_s=1.0)
SMALL = [
    *(pytest.param(name, ONE, 3, id=f"{name}-one-stage") for name in SCHEDULES),
    *(pytest.param(name, CHAIN, 2, id=f"{name}-chain") for name in SCHEDULES),
    *(pytest.param(name, BRANCHED, 1, id=f"{name}-branched") for name in SCHEDULES),
    *(pytest.param(name, SHARED, 1, id=f"{name}-shared") for name in GROUPED),
]


@pytest.mark.parametrize(("name", "costs", "microbatches"), SMALL)
def test_every_mutation_of_small_schedules_is_rejected(name: str, costs: PipelineCosts, microbatches: int) -> None:
    schedule = make_schedule(name, costs, microbatches)
    assert check(schedule, costs) == ()
    count = 0
    for what, changed in mutations(schedule):
        count += 1
        if changed != schedule:
            assert check(changed, costs), what
    assert count > 50


@pytest.mark.parametrize("name", ["1f1b", "zero-bubble"])
def test_random_mutations_of_a_large_schedule_are_rejected(name: str) -> None:
    costs = PipelineCosts.uniform(16, 1.0, 2.0, 0.5, weight_s=1.0)
    schedule = make_schedule(name, costs, 64)
    assert check(schedule, costs) == ()
    for seed, how in enumerate(("drop", "repeat", "move", "swap") * 6):
        group, other = seed * 5 % 16, seed * 7 % 16
        first = (group, seed * 37 % len(schedule.tasks[group]))
        second = (other, seed * 53 % len(schedule.tasks[other]))
        changed = mutate(schedule, how, first, second)
        assert changed == schedule or check(changed, costs), (how, first, second)


def lists(*groups: str, warmup: tuple[int, ...] = ()) -> ScheduledStep:
    """A two-stage schedule written as words: F0, B0, W0, free0, >F0 (send), <F0 (recv), prepare, apply."""
    kinds = {"F": "forward", "B": "backward", "W": "weight"}

    def task(word: str, stage: int) -> Task:
        if word in ("prepare", "apply"):
            return Task(word, stage, level=0)
        if word.startswith("free"):
            return Task("free", stage, int(word[4:]))
        if word[0] in "<>":
            return Task({"<": "recv", ">": "send"}[word[0]], stage, int(word[2:]), 1 - stage, kinds[word[1]])
        return Task(kinds[word[0]], stage, int(word[1:]))

    tasks = tuple(tuple(task(word, stage) for word in text.split()) for stage, text in enumerate(groups))
    return ScheduledStep("1f1b", len(groups), max(t.microbatch or 0 for g in tasks for t in g) + 1, tasks, warmup)


TWO = PipelineCosts.uniform(2, 1.0, 2.0)
SECOND = "prepare <F0 F0 B0 >B0 free0 <F1 F1 B1 >B1 free1 apply"


def test_a_list_written_by_hand_passes() -> None:
    first = "prepare F0 >F0 F1 >F1 <B0 B0 free0 <B1 B1 free1 apply"
    assert check(lists(first, SECOND, warmup=(2, 1)), TWO) == ()
    assert check(lists(first, SECOND), TWO) == ()


@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [
        ("prepare F0 >F0 F1 >F1 <B0 B0 free0 <B1 B1 free1", SECOND, "group 0 lacks apply of stage 0, level 0"),
        ("prepare F0 F1 >F0 >F1 <B0 B0 free0 <B1 B1 free1 apply", SECOND,
         "group 0, task 2, forward of stage 0, micro-batch 1: here belongs send on stage 0 to stage 1"),
        ("prepare F0 >F0 <B0 B0 free0 <B1 B1 free1 F1 >F1 apply", SECOND, "before its forward"),
        ("prepare F1 >F1 F0 >F0 <B0 B0 free0 <B1 B1 free1 apply", SECOND, "micro-batch 0 comes first"),
        ("F0 >F0 prepare F1 >F1 <B0 B0 free0 <B1 B1 free1 apply", SECOND, "does not start with its prepare tasks"),
        ("prepare F0 >F0 F1 >F1 <B0 B0 free0 apply <B1 B1 free1", SECOND, "does not end with its apply tasks"),
        ("prepare F0 >F0 <B0 B0 free0 F1 >F1 <B1 B1 free1 apply",
         "prepare <F0 F0 <F1 F1 B0 >B0 free0 B1 >B1 free1 apply",
         "deadlock: group 0, task 3, recv on stage 0 from stage 1 of its backward value, micro-batch 0"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(first: str, second: str, problem: str) -> None:
    found = check(lists(first, second), TWO)
    assert any(problem in text for text in found), found


def test_what_a_schedule_records_must_be_so() -> None:
    schedule = make_schedule("1f1b", CHAIN, 4)
    assert "follows 3 forwards, recorded are 2" in check(replace(schedule, warmup=(2, 2, 1)), CHAIN)[0]
    assert "2 warm-up counts for 3 stages" in check(replace(schedule, warmup=(3, 2)), CHAIN)[0]
    assert any("lacks weight of stage 1, micro-batch 0" in text for text in check(replace(schedule, split=(1,)), CHAIN))
    assert "cannot be split" in check(replace(schedule, split=(1,)), replace(CHAIN, weight_s=()))[0]


def test_a_schedule_is_for_one_pipeline() -> None:
    schedule = make_schedule("1f1b", CHAIN, 4)
    assert "3 stages, but the pipeline has 2" in check(schedule, TWO)[0]
    other = replace(CHAIN, edges=(*CHAIN.edges, Edge(0, 2)))
    assert "lacks send on stage 0 to stage 2" in check(schedule, other)[0]
    assert "1 lists, but the pipeline has 3 groups" in check(replace(schedule, tasks=schedule.tasks[:1]), CHAIN)[0]
    shared = replace(CHAIN, groups=(0, 1, 0), static_bytes=())
    assert any("stage 2 runs on group 0" in text for text in check(schedule, shared))
    strange = replace(schedule, tasks=((Task("think", 0), Task("forward", 9, 0)), (), ()))
    assert [text.rpartition(": ")[2] for text in check(strange, CHAIN)] == [
        "unknown kind 'think'",
        "there are 3 stages",
    ]


def test_memory_is_what_is_always_there_and_what_is_in_flight() -> None:
    costs = replace(CHAIN, activation_bytes=(10, 10, 10), static_bytes=(5, 5, 5))
    schedule = make_schedule("1f1b", costs, 8)
    assert check(schedule, replace(costs, limit_bytes=(35, 25, 15))) == ()
    assert check(schedule, replace(costs, limit_bytes=(35, 24, 15))) == ("group 1 needs 25 bytes, but has 24",)
