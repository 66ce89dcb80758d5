"""The simulator: closed forms of equal stages to the last bit, bounds on any pipeline, links, memory and waiting."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from closed_forms import in_flight, steady_time_s
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_pipelines import GROUPED, pipelines

from rhino.errors import RhinoError
from rhino.pipeline.schedule import (
    SCHEDULES,
    Edge,
    Exchange,
    PipelineCosts,
    chrome_trace,
    estimate_step_s,
    make_schedule,
    simulate,
    warmup_counts,
)
from rhino.pipeline.schedule.period import steady_period_s


@pytest.mark.parametrize(
    ("name", "transfer", "expected"),
    [("1f1b", 1.0, 4.5), ("eager-1f1b", 1.0, 3.0), ("1f1b", 1.5, 5.25), ("eager-1f1b", 1.5, 3.0)],
)
def test_examples_of_the_design(name: str, transfer: float, expected: float) -> None:
    costs = PipelineCosts.uniform(4, 1.0, 2.0, transfer)
    assert simulate(make_schedule(name, costs, 64), costs).steady_time_per_microbatch_s == expected
    assert steady_time_s(name, 4, 1.0, 2.0, transfer) == expected


@pytest.mark.parametrize("stages", range(2, 17))
@pytest.mark.parametrize("name", ["1f1b", "eager-1f1b"])
def test_steady_time_is_the_closed_form(name: str, stages: int) -> None:
    # Up to, at, and beyond c = (f + b) / 2, where eager-1f1b no longer hides the transfer.
    for transfer in (0.0, 0.25, 1.0, 1.5, 1.75, 4.0) if stages <= 8 else (1.0, 1.75):
        costs = PipelineCosts.uniform(stages, 1.0, 2.0, transfer)
        expected = steady_time_s(name, stages, 1.0, 2.0, transfer)
        measured = simulate(make_schedule(name, costs, 14 * stages), costs).steady_time_per_microbatch_s
        assert measured == pytest.approx(expected, rel=1e-12), transfer
        period = steady_period_s(costs, warmup_counts(name, costs.depths(), 14 * stages))
        assert period == pytest.approx(expected, rel=1e-12), transfer


@pytest.mark.parametrize("stages", range(2, 17))
def test_in_flight_is_the_closed_form(stages: int) -> None:
    costs = PipelineCosts.uniform(stages, 1.0, 2.0, 0.5)
    known = (("gpipe", None), ("1f1b", None), ("eager-1f1b", None), ("kfkb", 3))
    for m in range(1, 65):
        expected = {
            name: tuple(in_flight(name, stages, stage, m, k or 1) for stage in range(stages)) for name, k in known
        }
        for name, k in known:
            assert warmup_counts(name, costs.depths(), m, k or 1) == expected[name]
        # The lists alone decide; every name gets its turn with every number of stages.
        name, k = known[(m + stages) % 4]
        schedule = make_schedule(name, costs, m, k=k)
        peaks, now = [0] * stages, [0] * stages
        for tasks in schedule.tasks:
            for task in tasks:
                now[task.stage] += {"forward": 1, "free": -1}.get(task.kind, 0)
                peaks[task.stage] = max(peaks[task.stage], now[task.stage])
        assert tuple(peaks) == schedule.warmup == expected[name], (name, m)
        assert not any(now)
        if m in (1, stages, 64):
            assert simulate(schedule, costs).in_flight_peak == expected[name]


def test_gpipe_without_transfers_is_its_formula() -> None:
    for stages, m in ((1, 5), (4, 1), (4, 8), (7, 3)):
        costs = PipelineCosts.uniform(stages, 1.0, 2.0)
        result = simulate(make_schedule("gpipe", costs, m), costs)
        assert result.step_time_s == 3 * (m + stages - 1)
        assert result.bubble_fraction == pytest.approx((stages - 1) / (m + stages - 1))
        assert result.exposed_s == (0.0,) * stages
    costs = PipelineCosts.uniform(4, 1.0, 2.0, 3.0)  # links slower than tasks
    assert simulate(make_schedule("gpipe", costs, 40), costs).steady_time_per_microbatch_s == 6.0
    assert steady_time_s("gpipe", 4, 1.0, 2.0, 3.0) == 6.0


@pytest.mark.parametrize(("stages", "m"), [(2, 2), (4, 4), (4, 16), (8, 32)])
def test_zero_bubble_without_transfers_is_zb_h1(stages: int, m: int) -> None:
    """arXiv 2401.10241: a bubble of (n - 1)(f + b - w) instead of 1F1B's (n - 1)(f + b + w), in the same memory."""
    costs = PipelineCosts.uniform(stages, 1.0, 2.0, weight_s=1.0)
    result = simulate(make_schedule("zero-bubble", costs, m), costs)
    assert result.step_time_s == 3 * m + (stages - 1)
    assert max(result.in_flight_peak) <= min(m, stages)
    assert simulate(make_schedule("1f1b", costs, m), costs).step_time_s == 3 * m + 3 * (stages - 1)


def test_interleaving_divides_the_bubble() -> None:
    """arXiv 2104.04473: with v stages per group, the bubble is (p - 1)(f + b) / v of a step of m (f + b)."""
    whole = PipelineCosts.uniform(4, 2.0, 4.0)
    halves = PipelineCosts.uniform(8, 1.0, 2.0, groups=4)
    plain = simulate(make_schedule("1f1b", whole, 16), whole)
    interleaved = simulate(make_schedule("interleaved-1f1b", halves, 16), halves)
    assert plain.step_time_s == 16 * 6 + 3 * 6
    assert interleaved.step_time_s == 16 * 6 + 3 * 6 / 2


def test_delayed_weight_gradients_hide_transfers() -> None:
    costs = PipelineCosts.uniform(4, 1.0, 2.0, 0.5, weight_s=1.0)
    at_once = simulate(make_schedule("1f1b", costs, 64), costs)
    delayed = simulate(make_schedule("1f1b", costs, 64, delay_weight=True), costs)
    assert delayed.in_flight_peak == at_once.in_flight_peak
    # Gradients leave one w earlier: on the way back, that takes n - 1 of w off the cycle through all stages.
    assert at_once.steady_time_per_microbatch_s == 3 + 2 * 0.5 * 3 / 4
    assert delayed.steady_time_per_microbatch_s == 3.0
    assert delayed.step_time_s < at_once.step_time_s


@st.composite
def named_pipelines(draw: st.DrawFn) -> tuple[str, PipelineCosts, int, bool | None]:
    costs = draw(pipelines(dealt=draw(st.booleans())))
    names = [n for n in SCHEDULES if n in GROUPED or costs.group_count == costs.stages]
    name = draw(st.sampled_from([n for n in names if n != "zero-bubble" or any(costs.weight_s)]))
    delay = draw(st.booleans()) if any(costs.weight_s) and name != "zero-bubble" else None
    return name, costs, draw(st.integers(1, 12)), delay


@settings(max_examples=120, deadline=None)
@given(named_pipelines())
def test_simulated_time_is_never_below_the_bound(made: tuple[str, PipelineCosts, int, bool | None]) -> None:
    name, costs, m, delay = made
    result = simulate(make_schedule(name, costs, m, delay_weight=delay), costs)
    bound = estimate_step_s(name, costs, m, delay_weight=delay)
    assert 0 < bound <= result.step_time_s * (1 + 1e-12)
    busy = [
        m * sum(costs.forward_s[s] + costs.backward_s[s] for s in costs.stages_of(g))
        + sum(costs.prepare_s[s] + costs.apply_s[s] for s in costs.stages_of(g))
        for g in range(costs.group_count)
    ]
    assert result.busy_s == pytest.approx(busy)
    assert result.bubble_fraction == pytest.approx(1 - sum(busy) / costs.group_count / result.step_time_s)
    assert all(0 <= e <= result.step_time_s - b + 1e-9 for e, b in zip(result.exposed_s, busy, strict=True))


@pytest.mark.parametrize("seed", range(8))
def test_steady_time_of_unequal_stages_is_the_largest_cycle(seed: int) -> None:
    draw = Random(seed)
    n = draw.randint(2, 6)
    edges = [Edge(s, s + 1, draw.randint(0, 4) / 4, draw.randint(0, 4) / 4) for s in range(n - 1)]
    edges += [Edge(s, s + 2, draw.randint(0, 4) / 4, None) for s in range(n - 2) if draw.random() < 0.5]
    seconds = tuple(draw.randint(4, 8) / 4 for _ in range(2 * n))
    costs = PipelineCosts(seconds[:n], seconds[n:], edges=tuple(edges))
    warmup = tuple(depth + seed % 3 * (depth - 1) for depth in costs.depths())
    measured = simulate(make_schedule("1f1b", costs, 600, warmup=warmup), costs).steady_time_per_microbatch_s
    assert measured == pytest.approx(steady_period_s(costs, warmup), rel=1e-9)


def test_the_bound_is_exact_for_equal_stages() -> None:
    for m in (1, 3, 4, 8, 29):
        for name in ("gpipe", "1f1b", "eager-1f1b"):
            costs = PipelineCosts.uniform(4, 1.0, 2.0)
            simulated = simulate(make_schedule(name, costs, m), costs).step_time_s
            assert estimate_step_s(name, costs, m) == simulated, (name, m)
    costs = PipelineCosts.uniform(4, 1.0, 2.0, 1.0)
    simulated = simulate(make_schedule("1f1b", costs, 65), costs).step_time_s
    assert 0.97 * simulated < estimate_step_s("1f1b", costs, 65) <= simulated


def test_transfers_of_different_groups_share_a_link() -> None:
    def two(links: tuple[str, ...]) -> PipelineCosts:
        edges = (Edge(0, 2, 3.0, None, links), Edge(1, 2, 3.0, None, links))
        return PipelineCosts((1.0, 1.0, 1.0), (1.0, 1.0, 1.0), edges=edges)

    alone, shared = (
        simulate(make_schedule("gpipe", costs, 1), costs).step_time_s for costs in (two(()), two(("nic",)))
    )  # fmt: skip
    assert alone == 1 + 3 + 1 + 1
    assert shared == 1 + 3 + 3 + 1 + 1
    sends = [e for e in simulate(make_schedule("gpipe", two(("nic",)), 1), two(("nic",))).events if e.task.of]
    assert [(e.start_s, e.end_s) for e in sends] == [(1.0, 7.0), (1.0, 7.0)]


def test_a_transfer_is_slower_only_while_it_shares() -> None:
    """Stage 2 gets 4 s from stage 0 at 1, and 1 s from stage 1 at 2: half as fast until 4, where the latter ends."""
    edges = (Edge(0, 2, 4.0, None, ("out 0", "in 2")), Edge(1, 2, 1.0, None, ("out 1", "in 2")))
    costs = PipelineCosts((1.0, 2.0, 1.0), (1.0, 1.0, 1.0), edges=edges)
    result = simulate(make_schedule("gpipe", costs, 1), costs)
    sends = [(e.start_s, e.end_s) for e in result.events if e.task.of]
    assert sends == [(2.0, 4.0), (1.0, 6.0)]
    assert result.exposed_s == (0.0, 0.0, 5.0)


def test_a_transfer_that_waits_for_its_connection_takes_nothing_from_others() -> None:
    """Stage 0 sends 4 s to stage 1 in each of two micro-batches, and 1 s to stage 2: only the second 4 s wait."""
    edges = (Edge(0, 1, 4.0, None, ("out 0", "in 1")), Edge(0, 2, 1.0, None, ("out 0", "in 2")))
    costs = PipelineCosts((1.0, 0.0, 0.0), (1.0, 1.0, 1.0), edges=edges)
    sends = [
        (e.task.peer, e.task.microbatch, e.start_s, e.end_s)
        for e in simulate(make_schedule("gpipe", costs, 2), costs).events
        if e.task.of
    ]
    # In all 10 s of work leave stage 0; the second 1 s starts when the first is there, at 3, and shares until 5.
    assert sends == [(2, 0, 1.0, 3.0), (2, 1, 3.0, 5.0), (1, 0, 1.0, 7.0), (1, 1, 7.0, 11.0)]


def test_stages_of_two_groups_share_the_connection_between_these() -> None:
    edges = (Edge(0, 1, 3.0, None), Edge(2, 3, 3.0, None))
    costs = PipelineCosts((1.0,) * 4, (1.0,) * 4, edges=edges, groups=(0, 1, 0, 1))
    sends = [e for e in simulate(make_schedule("interleaved-1f1b", costs, 1), costs).events if e.task.kind == "send"]
    assert [(e.start_s, e.end_s) for e in sends] == [(1.0, 4.0), (4.0, 7.0)]


def test_waiting_for_a_transfer_is_exposed_and_waiting_for_computing_is_not() -> None:
    costs = PipelineCosts.uniform(2, 1.0, 2.0, 0.5)
    result = simulate(make_schedule("1f1b", costs, 1), costs)
    # Group 1 waits 1 for the forward and 0.5 for its transfer; group 0 waits 3 and 0.5.
    assert result.step_time_s == 1 + 0.5 + 3 + 0.5 + 2
    assert result.exposed_s == (0.5, 0.5)
    assert result.busy_s == (3.0, 3.0)


def test_a_transfer_still_on_its_way_holds_what_waits_for_a_later_one() -> None:
    edges = (Edge(0, 2, 8.0, None), Edge(1, 2, 1.0, None))
    costs = PipelineCosts((1.0, 3.0, 1.0), (1.0, 1.0, 1.0), edges=edges)
    # Stage 2 has stage 0's value at 9, though stage 1's, which it asks for second, is sent at 3 and there at 4.
    assert simulate(make_schedule("gpipe", costs, 1), costs).step_time_s == 9 + 2


def test_memory_over_time() -> None:
    costs = replace(PipelineCosts.uniform(2, 1.0, 2.0), activation_bytes=(10, 20), static_bytes=(100, 200))
    result = simulate(make_schedule("1f1b", costs, 2), costs)
    assert result.memory[1] == ((0.0, 200), (1.0, 220), (4.0, 200), (4.0, 220), (7.0, 200))
    assert result.memory_peak_bytes == (120, 220)


def test_what_happens_once_per_step_takes_time() -> None:
    costs = PipelineCosts(
        (1.0, 1.0), (1.0, 1.0), prepare_s=(2.0, 0.0), apply_s=(0.0, 4.0), edges=(Edge(0, 1),), apply_levels=(1, 2),
        exchanges=(
            Exchange("prepare", 0, 1, 0, 0.25), Exchange("backward", 0, 1, 0, 8.0), Exchange("apply", 0, 1, 0, 16.0),
        ),
    )  # fmt: skip
    # prepare, F0, F1, B1, B0; both leave stage 0 on one link: the sum of gradients takes 8, then apply 0's value 16.
    result = simulate(make_schedule("1f1b", costs, 1), costs)
    assert result.step_time_s == 2 + 4 + 8 + 16 + 4


def test_a_schedule_that_cannot_go_on_is_an_error() -> None:
    costs = PipelineCosts.uniform(2, 1.0, 2.0)
    schedule = make_schedule("1f1b", costs, 1)
    broken = replace(schedule, tasks=(schedule.tasks[0][:1], schedule.tasks[1]))
    with pytest.raises(RhinoError, match="group 1 waits forever at task 1: recv on stage 1 from stage 0"):
        simulate(broken, costs)
    with pytest.raises(RhinoError, match="no such transfer"):
        simulate(schedule, replace(costs, edges=()))


def test_a_thousand_micro_batches_take_about_a_second() -> None:
    costs = PipelineCosts.uniform(16, 1.0, 2.0, 0.5)
    start = time.process_time()
    simulate(make_schedule("1f1b", costs, 1024), costs)
    assert time.process_time() - start < 3  # 0.5 on an idle core


def test_the_trace_holds_every_task_on_its_track() -> None:
    costs = replace(PipelineCosts.uniform(4, 1.0, 2.0, 0.5, groups=2), activation_bytes=(1,) * 4)
    schedule = make_schedule("interleaved-1f1b", costs, 2)
    result = simulate(schedule, costs)
    trace = json.loads(json.dumps(chrome_trace(result, costs)))
    events = trace["traceEvents"]
    names = {(e["pid"], e["args"]["name"]) for e in events if e["ph"] == "M"}
    assert {(0, "group 0 (stages 0, 2)"), (1, "send"), (1, "recv")} <= names
    assert {e["ts"] for e in events if e["ph"] == "C"} >= {0.0}
    slices = [e for e in events if e["ph"] == "X"]
    kinds = ["compute" if e["tid"] == 0 else ("recv", "send")[e["tid"] % 2] for e in slices]
    counts = [kinds.count(kind) for kind in ("compute", "send", "recv")]
    computed = sum(t.kind in ("prepare", "forward", "backward", "apply") for tasks in schedule.tasks for t in tasks)
    sent = sum(t.kind == "send" for tasks in schedule.tasks for t in tasks)
    assert counts == [computed, sent, sent] and sent == 12
    for track in {(e["pid"], e["tid"]) for e in slices}:
        mine = sorted((e["ts"], e["dur"]) for e in slices if (e["pid"], e["tid"]) == track)
        assert all(a + d <= b for (a, d), (b, _) in pairwise(mine)), track
    assert {"F0", "F0 stage 2", "B1 3>2", "apply stage 3"} <= {e["name"] for e in slices}
