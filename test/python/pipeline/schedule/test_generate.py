"""Schedules by name: their lists, options, what is refused, and the choice of warm-up counts."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from schedule_pipelines import pipelines

from rhino.errors import RhinoError
from rhino.pipeline.schedule import (
    SCHEDULES,
    Edge,
    Exchange,
    PipelineCosts,
    ScheduledStep,
    check,
    choose_warmup,
    make_schedule,
    simulate,
    warmup_counts,
)
from rhino.pipeline.schedule.period import steady_period_s

CHAIN = PipelineCosts.uniform(4, 1.0, 2.0, 0.5, weight_s=1.0)


def text(schedule: ScheduledStep, group: int, kinds: tuple[str, ...] = ("forward", "backward", "weight")) -> str:
    return " ".join(f"{t.kind[0].upper()}{t.microbatch}" for t in schedule.tasks[group] if t.kind in kinds)


@pytest.mark.parametrize(
    ("name", "options", "first", "last"),
    [
        ("gpipe", {}, "F0 F1 F2 F3 F4 B0 B1 B2 B3 B4", "F0 F1 F2 F3 F4 B0 B1 B2 B3 B4"),
        ("1f1b", {}, "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4", "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4"),
        ("1f1b", {"delay_weight": True}, "F0 F1 F2 F3 B0 W0 F4 B1 W1 B2 W2 B3 W3 B4 W4",
         "F0 B0 W0 F1 B1 W1 F2 B2 W2 F3 B3 W3 F4 B4 W4"),
        ("eager-1f1b", {}, "F0 F1 F2 F3 F4 B0 B1 B2 B3 B4", "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4"),
        ("kfkb", {"k": 2}, "F0 F1 F2 F3 F4 B0 B1 B2 B3 B4", "F0 F1 B0 B1 F2 F3 B2 B3 F4 B4"),
        ("1f1b", {"warmup": (4, 4, 2, 2)}, "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4", "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4"),
    ],
)  # fmt: skip
def test_orders(name: str, options: dict[str, Any], first: str, last: str) -> None:
    schedule = make_schedule(name, CHAIN, 5, **options)
    assert (text(schedule, 0), text(schedule, 3)) == (first, last)
    assert check(schedule, CHAIN) == ()


def test_interleaved_takes_rounds_of_micro_batches_through_its_stages() -> None:
    costs = PipelineCosts.uniform(4, 1.0, 2.0, groups=2)
    schedule = make_schedule("interleaved-1f1b", costs, 4)
    steps = [(t.kind[0], t.stage, t.microbatch) for t in schedule.tasks[1] if t.kind in ("forward", "backward")]
    assert steps[:6] == [("f", 1, 0), ("f", 1, 1), ("f", 3, 0), ("b", 3, 0), ("f", 3, 1), ("b", 3, 1)]
    with_one_each = make_schedule("interleaved-1f1b", CHAIN, 5)
    assert with_one_each.tasks == make_schedule("1f1b", CHAIN, 5).tasks


@pytest.mark.parametrize("groups", [1, 2, 3, 5])
def test_interleaved_runs_any_number_of_micro_batches(groups: int) -> None:
    for stages in range(groups, 9):
        costs = PipelineCosts.uniform(stages, 1.0, 2.0, 0.5, groups=groups)
        for m in range(1, 2 * groups + 3):
            schedule = make_schedule("interleaved-1f1b", costs, m)
            assert check(schedule, costs) == (), (stages, m)


def test_what_is_sent_once_per_step_has_its_place() -> None:
    costs = replace(
        PipelineCosts.uniform(2, 1.0, 2.0), apply_levels=(1, 2), prepare_levels=(1, 2),
        exchanges=(
            Exchange("prepare", 0, 1), Exchange("prepare", 1, 0, 1), Exchange("weight", 0, 1), Exchange("apply", 0, 1),
        ),
    )  # fmt: skip
    schedule = make_schedule("1f1b", costs, 1)
    assert [str(task) for task in schedule.tasks[1]] == [
        "prepare of stage 1, level 0",
        "recv on stage 1 from stage 0 of its prepare value, level 0",
        "prepare of stage 1, level 1",
        "send on stage 1 to stage 0 of its prepare value, level 1",
        "recv on stage 1 from stage 0 of its forward value, micro-batch 0",
        "forward of stage 1, micro-batch 0",
        "backward of stage 1, micro-batch 0",
        "send on stage 1 to stage 0 of its backward value, micro-batch 0",
        "free of stage 1, micro-batch 0",
        "recv on stage 1 from stage 0 of its backward value",
        "apply of stage 1, level 0",
        "recv on stage 1 from stage 0 of its apply value, level 0",
        "apply of stage 1, level 1",
    ]
    assert check(schedule, costs) == ()
    delayed = replace(costs, weight_s=(1.0, 1.0))
    sent = [t for t in make_schedule("1f1b", delayed, 1, delay_weight=True).tasks[0] if t.kind == "send"]
    assert sent[-2].of == "weight" and sent[-2].microbatch is None


def test_towers_need_no_more_than_their_own_depth() -> None:
    edges = (Edge(0, 1), Edge(1, 4), Edge(2, 4), Edge(3, 4))
    costs = PipelineCosts((1.0,) * 5, (2.0,) * 5, edges=edges)
    assert costs.depths() == (3, 2, 2, 2, 1)
    assert make_schedule("1f1b", costs, 9).warmup == (3, 2, 2, 2, 1)
    # As fast as with one more per stage before it by number, which the order of stages in a list would ask for.
    wide = make_schedule("1f1b", costs, 9, warmup=(5, 4, 3, 2, 1))
    assert simulate(make_schedule("1f1b", costs, 9), costs).step_time_s <= simulate(wide, costs).step_time_s


@pytest.mark.parametrize(
    ("transfer", "expected"),
    [(0.0, (4, 3, 2, 1)), (0.5, (7, 5, 3, 1)), (1.5, (7, 5, 3, 1)), (1.75, (10, 7, 4, 1)), (6.0, (16, 11, 6, 1))],
)
def test_counts_follow_from_the_transfer(transfer: float, expected: tuple[int, ...]) -> None:
    costs = PipelineCosts.uniform(4, 1.0, 2.0, transfer)
    assert choose_warmup(costs, 64) == expected
    assert steady_period_s(costs, expected) == 3.0
    assert choose_warmup(costs, 5) == tuple(min(5, count) for count in expected)


def test_counts_make_the_best_of_little_memory() -> None:
    costs = replace(PipelineCosts.uniform(4, 1.0, 2.0, 1.0), activation_bytes=(10,) * 4, static_bytes=(5,) * 4)
    rooms = replace(costs, limit_bytes=(45,) * 4)
    counts = choose_warmup(rooms, 64)
    assert max(counts) == 4
    # 1F1B's counts fit too; nothing that fits is faster, by trying all.
    every = [c for c in product(range(1, 5), repeat=4) if list(c) == sorted(c, reverse=True)]
    best = min(steady_period_s(costs, candidate) for candidate in every)
    assert steady_period_s(costs, counts) == best
    assert check(make_schedule("eager-1f1b", rooms, 64, warmup=counts), rooms) == ()
    uneven = replace(costs, limit_bytes=(75, 25, 75, 75))
    assert choose_warmup(uneven, 64)[1] == 2


@settings(max_examples=60, deadline=None)
@given(pipelines())
def test_chosen_counts_hide_transfers(costs: PipelineCosts) -> None:
    counts = choose_warmup(costs, 10**6)
    slowest = max(f + b for f, b in zip(costs.forward_s, costs.backward_s, strict=True))
    assert steady_period_s(costs, counts) == pytest.approx(slowest)
    schedule = make_schedule("eager-1f1b", costs, 8, warmup=choose_warmup(costs, 8))
    assert check(schedule, costs) == ()


def test_kfkb_chooses_k() -> None:
    fast, slow = PipelineCosts.uniform(4, 1.0, 2.0), PipelineCosts.uniform(4, 1.0, 2.0, 3.0)
    assert make_schedule("kfkb", fast, 32).warmup == warmup_counts("1f1b", fast.depths(), 32)
    chosen = make_schedule("kfkb", slow, 32)
    assert chosen.warmup[-1] > 1
    times = [simulate(make_schedule("kfkb", slow, 32, k=k), slow).step_time_s for k in (1, 2, 3, 4, 6, 8)]
    assert simulate(chosen, slow).step_time_s == min(times)
    tight = replace(slow, activation_bytes=(1,) * 4, limit_bytes=(8,) * 4)
    assert make_schedule("kfkb", tight, 32).warmup == (8, 6, 4, 2)


def test_zero_bubble_keeps_within_memory_and_caps() -> None:
    costs = replace(CHAIN, activation_bytes=(10,) * 4, limit_bytes=(25,) * 4)
    schedule = make_schedule("zero-bubble", costs, 12)
    assert check(schedule, costs) == () and max(simulate(schedule, costs).in_flight_peak) == 2
    assert max(simulate(make_schedule("zero-bubble", CHAIN, 12, caps=(3,) * 4), CHAIN).in_flight_peak) <= 3
    assert schedule.split == (0, 1, 2, 3)
    on_any = replace(CHAIN, groups=(0, 0, 1, 1), static_bytes=(), once_bytes=())
    assert check(make_schedule("zero-bubble", on_any, 12), on_any) == ()


LIMITED = replace(CHAIN, activation_bytes=(10,) * 4, static_bytes=(5,) * 4, limit_bytes=(45,) * 4)
SHARED = PipelineCosts.uniform(4, 1.0, 2.0, groups=2)


@pytest.mark.parametrize(
    ("name", "costs", "m", "options", "message"),
    [
        ("fifo", CHAIN, 4, {}, "unknown schedule 'fifo'; known are gpipe"),
        ("1f1b", CHAIN, 0, {}, "needs at least one micro-batch, got 0"),
        ("1f1b", CHAIN, 4, {"k": 2}, "1f1b does not take k; k is for kfkb"),
        ("kfkb", CHAIN, 4, {"k": 0}, "got k = 0"),
        ("1f1b", SHARED, 4, {}, "1f1b runs one stage per group, got 4 stages on 2 groups"),
        ("1f1b", CHAIN, 4, {"warmup": (1, 2, 1, 1)}, "stage 0 runs 1 forwards before it waits for stage 1, which"),
        ("1f1b", CHAIN, 4, {"warmup": (2, 1)}, "warmup has 2 counts, but there are 4 stages"),
        ("1f1b", CHAIN, 4, {"warmup": (2, 1, 1, 0)}, "are below 1"),
        ("interleaved-1f1b", CHAIN, 4, {"warmup": (1,) * 4}, "does not take warmup"),
        ("interleaved-1f1b", replace(SHARED, groups=(0, 0, 1, 1)), 4, {}, "deals stages to groups in turn"),
        ("zero-bubble", SHARED, 4, {}, "no stage has a weight part to delay"),
        ("zero-bubble", CHAIN, 4, {"delay_weight": False}, "without delayed weight gradients is 1f1b"),
        ("zero-bubble", CHAIN, 4, {"caps": (1, 0, 1, 1)}, "must be 4 counts of 1 or more"),
        ("1f1b", SHARED, 4, {"delay_weight": True}, "one stage per group"),
        ("gpipe", LIMITED, 5, {}, "gpipe needs 55 bytes on group 0, which has 45"),
        ("zero-bubble", replace(LIMITED, static_bytes=(40,) * 4), 4, {}, "no room for one micro-batch"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(
    name: str, costs: PipelineCosts, m: int, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(RhinoError) as caught:
        make_schedule(name, costs, m, **options)
    assert message in str(caught.value)
    assert caught.value.remedy


def test_no_room_for_one_micro_batch_is_an_error() -> None:
    with pytest.raises(RhinoError, match="stage 0 saves 10 bytes per micro-batch, but group 0 has 5 left"):
        choose_warmup(replace(LIMITED, static_bytes=(40,) * 4), 4)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"forward_s": ()}, "at least one stage"),
        ({"backward_s": (1.0,)}, "backward_s has 1 values, but there are 2 stages"),
        ({"forward_s": (1.0, -1.0)}, "forward_s of stage 1 is -1.0"),
        ({"forward_s": (1.0, float("nan"))}, "forward_s of stage 1 is nan"),
        ({"weight_s": (0.0, 3.0)}, "the weight part of stage 1 takes 3, but its backward takes 2"),
        ({"groups": (0, 2)}, "no stage runs on group 1 of 3"),
        ({"limit_bytes": (1,)}, "limit_bytes has 1 values, but there are 2 groups"),
        ({"edges": (Edge(1, 0),)}, "edge 1 -> 0 must go from a stage to a later one"),
        ({"edges": (Edge(0, 1), Edge(0, 1))}, "edge 0 -> 1 is given twice"),
        ({"edges": (Edge(0, 1, -1.0),)}, "edge 0 -> 1 takes -1.0 seconds"),
        ({"exchanges": (Exchange("free", 0, 1),)}, "exchange of free 0 -> 1 is of an unknown kind"),
        ({"exchanges": (Exchange("apply", 0, 1),)}, "is for level 1, but stage 1 has 1"),
        ({"exchanges": (Exchange("prepare", 0, 1, 1),)}, "leaves level 1, but stage 0 has 1"),
        ({"exchanges": (Exchange("prepare", 0, 0),)}, "must be between two of 2 stages"),
        ({"exchanges": (Exchange("prepare", 0, 1), Exchange("prepare", 0, 1))}, "0 -> 1 is given twice"),
        ({"exchanges": (Exchange("prepare", 0, 1, 0, -1.0),)}, "takes -1.0 seconds"),
    ],
)  # fmt: skip
def test_costs_that_make_no_sense_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RhinoError) as caught:
        PipelineCosts(**{"forward_s": (1.0, 1.0), "backward_s": (2.0, 2.0), **fields})
    assert message in str(caught.value)


def test_every_name_of_the_attribute_can_be_made() -> None:
    from rhino.dialect import attributes

    for name in SCHEDULES:
        made = make_schedule(name, CHAIN, 3)
        assert made.name == name
        assert list(attributes.RhinoSchedule.schema.check(made.to_data())) == []
        assert ScheduledStep.from_data(made.to_data()) == made
