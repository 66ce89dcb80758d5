"""Proves a schedule: every task once, in canonical form, dependencies kept, free of deadlock, within memory.

Owns what a valid list is (docs/design/schedules.md, "What is checked"). Shares with the makers of schedules only what
stands around a compute task (wiring.py); what they order and why is not looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rhino.pipeline.schedule.costs import PipelineCosts
from rhino.pipeline.schedule.tasks import IN_LOOP, KINDS, ScheduledStep, Task
from rhino.pipeline.schedule.wiring import Wiring, once

_MOST = 20  # problems reported


def check(schedule: ScheduledStep, costs: PipelineCosts) -> tuple[str, ...]:
    """The problems of a schedule for a pipeline, none if it is valid. Times are not looked at.

    A valid list is in canonical form: prepare tasks first and apply tasks last, by level and stage; recvs directly
    before the first task that needs them, sends directly after the task that makes them, a free directly after the last
    use, each in the order of peers; micro-batches in order for every kind and stage. What a schedule records about
    itself (warm-up counts, split stages) must be so. Then leaving out, repeating or moving one task, or exchanging two
    different ones, never gives another valid list.
    """
    for step in (_shape, _complete, _canonical, _dependencies, _execution, _memory):
        problems = tuple(problem for problem, _ in zip(step(schedule, costs), range(_MOST), strict=False))
        if problems:
            return problems
    return ()


def _shape(schedule: ScheduledStep, costs: PipelineCosts) -> Iterator[str]:
    """Counts and indices: what the later steps rely on."""
    if schedule.stages != costs.stages:
        yield f"the schedule has {schedule.stages} stages, but the pipeline has {costs.stages}"
    if schedule.microbatches < 1:
        yield f"the schedule has {schedule.microbatches} micro-batches"
    if len(schedule.tasks) != costs.group_count:
        yield f"the schedule has {len(schedule.tasks)} lists, but the pipeline has {costs.group_count} groups"
    if schedule.warmup and len(schedule.warmup) != costs.stages:
        yield f"the schedule records {len(schedule.warmup)} warm-up counts for {costs.stages} stages"
    for stage in schedule.split:
        if stage not in costs.splittable():
            yield f"the schedule splits the backward of stage {stage}, which cannot be split"
    for group, tasks in enumerate(schedule.tasks):
        for at, task in enumerate(tasks):
            if task.kind not in KINDS:
                yield f"{_place(group, at, task)}: unknown kind {task.kind!r}"
            elif not 0 <= task.stage < costs.stages:
                yield f"{_place(group, at, task)}: there are {costs.stages} stages"
            elif costs.groups[task.stage] != group:
                yield f"{_place(group, at, task)}: stage {task.stage} runs on group {costs.groups[task.stage]}"


def _complete(schedule: ScheduledStep, costs: PipelineCosts) -> Iterator[str]:
    """Every task that the pipeline needs, once, and no other."""
    m, wiring = schedule.microbatches, Wiring(costs, schedule.microbatches, schedule.split)
    needed: Counter[Task] = Counter()
    for group in range(costs.group_count):
        compute = [*once(costs, group, "prepare"), *once(costs, group, "apply")]
        for stage in costs.stages_of(group):
            kinds = IN_LOOP if stage in schedule.split else IN_LOOP[:2]
            compute += [Task(kind, stage, i) for kind in kinds for i in range(m)]
        needed.update(wiring.around(compute))
    found: Counter[Task] = Counter()
    for group, tasks in enumerate(schedule.tasks):
        for at, task in enumerate(tasks):
            found[task] += 1
            if task not in needed:
                yield f"{_place(group, at, task)}: the pipeline has no such task"
            elif found[task] > 1:
                yield f"{_place(group, at, task)}: listed before"
    for task in needed:
        if task not in found:
            yield f"group {costs.groups[task.stage]} lacks {task}"


def _canonical(schedule: ScheduledStep, costs: PipelineCosts) -> Iterator[str]:
    """Every list is the canonical one of the order in which it computes."""
    wiring = Wiring(costs, schedule.microbatches, schedule.split)
    forwards = [0] * costs.stages
    backwards = [0] * costs.stages
    for group, tasks in enumerate(schedule.tasks):
        compute = [task for task in tasks if task.kind not in ("send", "recv", "free", "accumulate")]
        for at, (task, wanted) in enumerate(zip(tasks, wiring.around(compute), strict=False)):
            if task != wanted:
                yield f"{_place(group, at, task)}: here belongs {wanted}"
                break
        prepare, apply = once(costs, group, "prepare"), once(costs, group, "apply")
        if compute[: len(prepare)] != prepare:
            yield f"group {group} does not start with its prepare tasks in order of level and stage"
        if compute[len(compute) - len(apply) :] != apply:
            yield f"group {group} does not end with its apply tasks in order of level and stage"
        shared = len(costs.stages_of(group)) > 1
        for at, task in enumerate(compute):
            stage = task.stage
            if task.kind == "forward":
                forwards[stage] += 1
                follower = compute[at + 1] if at + 1 < len(compute) else task
                if shared and wiring.bare_forward(stage) and follower != Task("backward", stage, task.microbatch):
                    yield f"group {group}: {task} exchanges nothing, and is not directly before its backward"
            elif task.kind == "backward" and schedule.warmup:
                ahead = min(schedule.warmup[stage] + backwards[stage], schedule.microbatches)
                if forwards[stage] != ahead and (backwards[stage] == 0 or wiring.bare_forward(stage)):
                    yield f"group {group}: {task} follows {forwards[stage]} forwards, recorded are {ahead}"
                backwards[stage] += 1


def _dependencies(schedule: ScheduledStep, costs: PipelineCosts) -> Iterator[str]:
    """Within a list: micro-batches in order, forward before backward before weight, all between prepare and apply."""
    for group, tasks in enumerate(schedule.tasks):
        done: dict[tuple[str, int], int] = {}
        for at, task in enumerate(tasks):
            if task.kind not in IN_LOOP:
                continue
            i = done.get((task.kind, task.stage), 0)
            if task.microbatch != i:
                yield f"{_place(group, at, task)}: micro-batch {i} comes first"
            rank = IN_LOOP.index(task.kind)
            if rank and done.get((IN_LOOP[rank - 1], task.stage), 0) <= (task.microbatch or 0):
                yield f"{_place(group, at, task)}: before its {IN_LOOP[rank - 1]}"
            done[task.kind, task.stage] = i + 1


def _execution(schedule: ScheduledStep, costs: PipelineCosts) -> Iterator[str]:
    """An execution exists: lists in order, sends that never wait, recvs that wait for their send."""
    at = [0] * len(schedule.tasks)
    sent: set[tuple[object, ...]] = set()
    waiting: dict[tuple[object, ...], int] = {}
    ready = list(range(len(schedule.tasks)))
    while ready:
        group = ready.pop()
        tasks = schedule.tasks[group]
        while at[group] < len(tasks):
            task = tasks[at[group]]
            if task.kind == "send":
                key: tuple[object, ...] = (task.of, task.stage, task.peer, task.microbatch, task.level)
                sent.add(key)
                if key in waiting:
                    ready.append(waiting.pop(key))
            elif task.kind == "recv":
                key = (task.of, task.peer, task.stage, task.microbatch, task.level)
                if key not in sent:
                    waiting[key] = group
                    break
            at[group] += 1
    for group, tasks in enumerate(schedule.tasks):
        if at[group] < len(tasks):
            task = tasks[at[group]]
            assert task.peer is not None
            yield f"deadlock: {_place(group, at[group], task)} waits for group {costs.groups[task.peer]}"


def _memory(schedule: ScheduledStep, costs: PipelineCosts) -> Iterator[str]:
    """What is in flight fits, on every group, at every time: lists alone decide that."""
    for group, limit in enumerate(costs.limit_bytes):
        peak = memory_peak_bytes(schedule.tasks[group], costs, group)
        if peak > limit:
            yield f"group {group} needs {peak} bytes, but has {limit}"


def memory_peak_bytes(tasks: Sequence[Task], costs: PipelineCosts, group: int) -> int:
    """The most bytes of a group at once: with the activations of what is in flight, or outside the micro-batches."""
    now, peak = costs.static_bytes[group], max(costs.static_bytes[group], costs.once_bytes[group])
    for task in tasks:
        if task.kind == "forward":
            now += costs.activation_bytes[task.stage]
            peak = max(peak, now)
        elif task.kind == "free":
            now -= costs.activation_bytes[task.stage]
    return peak


def _place(group: int, at: int, task: Task) -> str:
    return f"group {group}, task {at}, {task}"
