"""Plays a schedule in time: groups compute one task at a time, transfers go on beside them and share links.

Owns the event loop and what is read off it: step time, bubble, exposed communication, micro-batches in flight, memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf
from typing import NamedTuple

from rhino.errors import RhinoError
from rhino.pipeline.schedule.costs import PipelineCosts
from rhino.pipeline.schedule.links import Links
from rhino.pipeline.schedule.steady import steady_time
from rhino.pipeline.schedule.tasks import COMPUTE, ScheduledStep, Task
from rhino.pipeline.schedule.wiring import Wiring


class TaskEvent(NamedTuple):
    """A task in time. Of a send, its transfer's, from when those before it between its groups have arrived."""

    task: Task
    group: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """What happens in one step.

    Attributes:
      step_time_s: until the last group is done.
      steady_time_per_microbatch_s: what one more micro-batch adds, where the step has a steady state; see steady.py.
      bubble_fraction: the share of all groups' time in which they do not compute.
      exposed_s: per group, the time it waits for a value that is on its way.
      busy_s: per group, the time it computes.
      in_flight_peak: per stage, most micro-batches whose activations it holds.
      memory: per group, (time, bytes) whenever what micro-batches hold changes, starting at time 0.
      memory_peak_bytes: per group, what is needed outside the micro-batches included.
      events: computing by its start and sending by its end, as time goes on.
    """

    step_time_s: float
    steady_time_per_microbatch_s: float
    bubble_fraction: float
    exposed_s: tuple[float, ...]
    busy_s: tuple[float, ...]
    in_flight_peak: tuple[int, ...]
    memory: tuple[tuple[tuple[float, int], ...], ...]
    memory_peak_bytes: tuple[int, ...]
    events: tuple[TaskEvent, ...]


def simulate(schedule: ScheduledStep, costs: PipelineCosts) -> Simulation:
    """Play a schedule.

    A send starts its transfer when the task before it is done; a recv holds its group until the transfer has arrived.
    Transfers from one group to another go one after another, as messages of a connection do. Those of other groups that
    share a link with them have equal parts of it.

    Raises:
      RhinoError: the lists wait for each other, or send what the pipeline does not have.
    """
    run = _SimulatorRun(schedule, costs)
    run.play()
    done = max(run.clock)
    total = done * len(run.clock)
    return Simulation(
        step_time_s=done,
        steady_time_per_microbatch_s=steady_time(schedule, costs, run.forward_ends, run.backward_ends, done),
        bubble_fraction=1 - sum(run.busy) / total if total > 0 else 0.0,
        exposed_s=tuple(run.exposed),
        busy_s=tuple(run.busy),
        in_flight_peak=tuple(run.in_flight_peak),
        memory=tuple(tuple(points) for points in run.memory),
        memory_peak_bytes=tuple(
            max(once, *(amount for _, amount in points))
            for once, points in zip(costs.once_bytes, run.memory, strict=True)
        ),
        events=tuple(run.events),
    )


def task_seconds(task: Task, costs: PipelineCosts, split: Sequence[int]) -> float:
    """Seconds of a compute task."""
    stage, kind = task.stage, task.kind
    if kind == "forward":
        return max(costs.task_s, costs.forward_s[stage])
    if kind == "weight":
        return max(costs.task_s, costs.weight_s[stage])
    if kind == "backward":
        return max(costs.task_s, costs.backward_s[stage] - (costs.weight_s[stage] if stage in split else 0.0))
    if kind == "prepare":
        return costs.prepare_s[stage] if task.level == 0 else 0.0
    return costs.apply_s[stage] if task.level == costs.apply_levels[stage] - 1 else 0.0


class _SimulatorRun:
    def __init__(self, schedule: ScheduledStep, costs: PipelineCosts) -> None:
        groups = len(schedule.tasks)
        self.schedule, self.costs = schedule, costs
        self.wiring = Wiring(costs, schedule.microbatches, schedule.split)
        self.next = [0] * groups
        self.clock = [0.0] * groups
        self.busy = [0.0] * groups
        self.exposed = [0.0] * groups
        self.in_flight = [0] * costs.stages
        self.in_flight_peak = [0] * costs.stages
        self.bytes = list(costs.static_bytes)
        self.memory = [[(0.0, amount)] for amount in costs.static_bytes]
        self.forward_ends: list[list[float]] = [[] for _ in range(costs.stages)]
        self.backward_ends: list[list[float]] = [[] for _ in range(costs.stages)]
        self.events: list[TaskEvent] = []
        # Of values, by (of, src, dst, micro-batch, level).
        self.sent_s: dict[tuple[object, ...], float] = {}
        self.arrived: set[tuple[object, ...]] = set()
        self.waiting: dict[tuple[object, ...], int] = {}
        self.links: Links[tuple[Task, int]] = Links()
        self.moments = [(0.0, group) for group in range(groups)]
        heapify(self.moments)
        self.seconds: dict[tuple[str, int, int | None], float] = {}

    def play(self) -> None:
        moments, links = self.moments, self.links
        while True:
            arrival = links.next_end_s()
            if arrival < inf and (not moments or arrival <= moments[0][0]):
                self.arrive(arrival)
            elif moments:
                now, group = heappop(moments)
                self.advance(group, now)
            else:
                break
        stuck = [g for g, tasks in enumerate(self.schedule.tasks) if self.next[g] < len(tasks)]
        if stuck:
            group = stuck[0]
            task = self.schedule.tasks[group][self.next[group]]
            raise RhinoError(f"group {group} waits forever at task {self.next[group]}: {task}",
                             "check the schedule to see what is missing")  # fmt: skip

    def advance(self, group: int, now: float) -> None:
        """Run a group's list until it computes or waits for what has not arrived."""
        tasks = self.schedule.tasks[group]
        at, end = self.next[group], len(tasks)
        while at < end:
            task = tasks[at]
            kind = task.kind
            at += 1
            if kind == "send":
                self.send(task, group, now)
            elif kind == "recv":
                key = (task.of, task.peer, task.stage, task.microbatch, task.level)
                if key not in self.arrived:
                    self.waiting[key] = group
                    self.next[group], self.clock[group] = at - 1, now
                    return
            elif kind == "free":
                self.hold(task.stage, group, now, -1)
            elif kind in COMPUTE:
                if kind == "forward":
                    self.hold(task.stage, group, now, 1)
                now = self.compute(task, group, now)
                self.next[group], self.clock[group] = at, now
                heappush(self.moments, (now, group))
                return
        self.next[group], self.clock[group] = at, now

    def compute(self, task: Task, group: int, now: float) -> float:
        key = (task.kind, task.stage, task.level)
        seconds = self.seconds.get(key)
        if seconds is None:
            seconds = self.seconds[key] = task_seconds(task, self.costs, self.schedule.split)
        done = now + seconds
        self.busy[group] += seconds
        self.events.append(TaskEvent(task, group, now, done))
        if task.kind == "forward":
            self.forward_ends[task.stage].append(done)
        elif task.kind == "backward":
            self.backward_ends[task.stage].append(done)
        return done

    def send(self, task: Task, group: int, now: float) -> None:
        try:
            seconds, links = self.wiring.transfer(task)
        except KeyError:
            raise RhinoError(f"{task}: the pipeline has no such transfer", "add it to the costs") from None
        self.sent_s[_value(task)] = now
        groups = self.costs.groups
        assert task.peer is not None
        self.links.send((task, group), (groups[task.stage], groups[task.peer]), links, seconds, now)

    def arrive(self, now: float) -> None:
        transfer = self.links.arrive()
        task, group = transfer.what
        self.events.append(TaskEvent(task, group, transfer.start_s, now))
        value = _value(task)
        self.arrived.add(value)
        waiter = self.waiting.pop(value, None)
        if waiter is not None:
            self.exposed[waiter] += now - max(self.clock[waiter], self.sent_s[value])
            heappush(self.moments, (now, waiter))

    def hold(self, stage: int, group: int, now: float, change: int) -> None:
        held = self.in_flight[stage] = self.in_flight[stage] + change
        if held > self.in_flight_peak[stage]:
            self.in_flight_peak[stage] = held
        size = self.costs.activation_bytes[stage]
        if size:
            self.bytes[group] += change * size
            self.memory[group].append((now, self.bytes[group]))


def _value(send: Task) -> tuple[object, ...]:
    return send.of, send.stage, send.peer, send.microbatch, send.level
