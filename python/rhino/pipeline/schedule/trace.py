"""A simulated step as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing.

Owns the trace's JSON: a process per group, with tracks for computing, sending and receiving, and a counter of memory.
What goes on at once is on several tracks, because slices of one track must not overlap.
"""

from __future__ import annotations

from typing import Any

from rhino.pipeline.schedule.costs import PipelineCosts
from rhino.pipeline.schedule.simulator import Simulation, TaskEvent

_COLORS = {"forward": "good", "backward": "bad", "weight": "terrible", "prepare": "grey", "apply": "olive"}


def chrome_trace(simulation: Simulation, costs: PipelineCosts) -> dict[str, Any]:
    """The trace as JSON data; a second of the simulation is a second of the trace."""
    events: list[dict[str, Any]] = []
    for group in range(costs.group_count):
        stages = ", ".join(map(str, costs.stages_of(group)))
        plural = "s" if len(costs.stages_of(group)) > 1 else ""
        events.append(_named("process_name", group, 0, f"group {group} (stage{plural} {stages})"))
        events.append(_named("thread_name", group, 0, "compute"))
        if len(simulation.memory[group]) > 1:
            events += [
                {"name": "memory", "ph": "C", "pid": group, "ts": _us(time), "args": {"bytes": amount}}
                for time, amount in simulation.memory[group]
            ]
    # Of each group's sends and recvs, when each track is free again.
    tracks: dict[tuple[int, str], list[float]] = {}
    for event in sorted(simulation.events, key=lambda e: e.start_s):
        if event.task.kind != "send":
            events.append(_slice(event, event.group, 0))
            continue
        assert event.task.peer is not None
        for group, kind, first in ((event.group, "send", 1), (costs.groups[event.task.peer], "recv", 2)):
            free = tracks.setdefault((group, kind), [])
            lane = next((i for i, until in enumerate(free) if until <= event.start_s), len(free))
            if lane == len(free):
                free.append(0.0)
                name = kind if lane == 0 else f"{kind} {lane + 1}"
                events.append(_named("thread_name", group, first + 2 * lane, name))
            free[lane] = event.end_s
            events.append(_slice(event, group, first + 2 * lane))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _named(what: str, group: int, track: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": group, "tid": track, "args": {"name": name}}


def _slice(event: TaskEvent, group: int, track: int) -> dict[str, Any]:
    task = event.task
    args = task.to_data()
    data = {
        "name": _label(event),
        "cat": task.kind,
        "ph": "X",
        "pid": group,
        "tid": track,
        "ts": _us(event.start_s),
        "dur": _us(event.end_s - event.start_s),
        "args": args,
    }
    if task.kind in _COLORS:
        data["cname"] = _COLORS[task.kind]
    return data


def _label(event: TaskEvent) -> str:
    """`F3` or `B3` with the stage where it is not the group's number; a transfer as `F3 0>1`."""
    task = event.task
    kind = task.of if task.kind == "send" else task.kind
    assert kind is not None
    label = f"{kind[0].upper()}{task.microbatch}" if task.microbatch is not None else kind
    if task.kind == "send":
        return f"{label} {task.stage}>{task.peer}"
    return label if task.stage == event.group else f"{label} stage {task.stage}"


def _us(seconds: float) -> float:
    return seconds * 1e6
