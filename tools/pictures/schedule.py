"""Two schedules of one pipeline in time: what each group of devices computes, and what travels meanwhile."""

from __future__ import annotations

from rhino.api.plan import Plan
from rhino.machine.units import nbytes, seconds
from rhino.pipeline.schedule import Simulation, simulate
from tools.pictures.pipeline import read
from tools.pictures.plans import staged
from tools.pictures.svg import Svg

NAME = "schedule"
_NAMES = ("1f1b", "eager-1f1b")
_LEFT, _WIDE, _LANE, _HIGH = 82, 618, 32, 22
_FILLS = {"forward": "a", "backward": "b", "apply": "c"}


def draw() -> str:
    """The picture as SVG."""
    plans = {name: staged(name) for name in _NAMES}
    played = {name: _play(plan) for name, plan in plans.items()}
    longest = max(result.step_time_s for result in played.values())
    svg = Svg(
        NAME,
        f"{plans[_NAMES[0]].microbatches} micro-batches through {plans[_NAMES[0]].stages} stages, by two schedules",
        " ".join(f"With {name} a step takes {seconds(result.step_time_s)}." for name, result in played.items()),
    )
    y = 32.0
    for name, result in played.items():
        y = _timeline(svg, y, name, plans[name], result, _WIDE / longest)
    svg.box(20, y, 12, 12, "a")
    svg.text(38, y + 10, "forward", "soft")
    svg.box(104, y, 12, 12, "b")
    svg.text(122, y + 10, "backward", "soft")
    svg.box(200, y, 12, 12, "c")
    svg.text(218, y + 10, "update", "soft")
    svg.line((286, y + 6), (312, y + 6), style="mark")
    svg.text(320, y + 10, "over the network", "soft")
    svg.text(456, y + 10, "Numbers are micro-batches.", "soft")
    return str(svg)


def _play(plan: Plan) -> Simulation:
    pipeline = read(plan)
    return simulate(pipeline.schedule, pipeline.costs)


def _timeline(svg: Svg, y: float, name: str, plan: Plan, played: Simulation, scale: float) -> float:
    flight = ", ".join(map(str, played.in_flight_peak))
    peak = nbytes(plan.predicted.peak_bytes)
    note = f"a step takes {seconds(played.step_time_s)}; micro-batches in flight: {flight}; peak {peak}"
    svg.heading(20, y, name, note)
    top = y + 34
    for group in range(plan.stages):
        svg.text(20, top + group * _LANE + 15, f"stage {group}", "soft")
        svg.box(_LEFT, top + group * _LANE, played.step_time_s * scale, _HIGH, "card", 0)
    events = sorted(played.events, key=lambda event: (event.start_s, event.group))
    for event in events:
        task, x, wide = event.task, _LEFT + event.start_s * scale, (event.end_s - event.start_s) * scale
        if task.kind in _FILLS and wide > 0:
            lane = top + event.group * _LANE
            svg.box(x, lane, wide, _HIGH, _FILLS[task.kind], 0)
            if task.microbatch is not None:
                svg.label(x, lane, wide, _HIGH, str(task.microbatch), "small")
    for event in events:
        task = event.task
        if task.kind == "send" and task.peer is not None and (event.end_s - event.start_s) * scale > 1:
            down = task.peer > event.group
            start = top + event.group * _LANE + (_HIGH if down else 0)
            end = top + task.peer * _LANE + (0 if down else _HIGH)
            svg.line((_LEFT + event.start_s * scale, start), (_LEFT + event.end_s * scale, end), style="mark")
    return top + plan.stages * _LANE + 34
