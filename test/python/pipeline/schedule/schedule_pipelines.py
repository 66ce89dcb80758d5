"""Pipelines that the tests of schedules share, and every way to spoil a task list by one step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hypothesis import strategies as st

from rhino.pipeline.schedule import Edge, Exchange, PipelineCosts, ScheduledStep

GROUPED = ("interleaved-1f1b", "zero-bubble")  # what runs several stages on a group
# Seconds that floats hold exactly, so that equal times are equal.
SECONDS = st.integers(0, 16).map(lambda quarter: quarter / 4)


@st.composite
def pipelines(draw: st.DrawFn, most_stages: int = 6, dealt: bool = False) -> PipelineCosts:
    """Any graph of stages: skips, towers, stages alone, edges of one direction, splits, exchanges once per step.

    Every stage has a group of its own; with `dealt`, groups get stages in turn.
    """
    n = draw(st.integers(1, most_stages))
    groups = draw(st.integers(1, n)) if dealt else n
    forward = [1 + draw(SECONDS) for _ in range(n)]
    backward = [2 + draw(SECONDS) for _ in range(n)]
    weight = [draw(st.sampled_from((0.0, 0.5, 1.0))) * b for b in backward]
    edges = []
    for src in range(n):
        for dst in range(src + 1, n):
            if draw(st.integers(0, 2 if dst == src + 1 else 5)) in (0, 1):
                ways = draw(st.sampled_from(("both", "both", "both", "forward", "backward")))
                edges.append(
                    Edge(
                        src,
                        dst,
                        draw(SECONDS) if ways != "backward" else None,
                        draw(SECONDS) if ways != "forward" else None,
                        draw(st.sampled_from(((), ("nic",)))),
                        draw(st.sampled_from(((), ("nic",), ("nic", "back")))),
                    )
                )
    prepare = [draw(st.integers(1, 2)) for _ in range(n)]
    apply = [draw(st.integers(1, 3)) for _ in range(n)]
    exchanges = {}
    for _ in range(draw(st.integers(0, 4)) if n > 1 else 0):
        of = draw(st.sampled_from(("prepare", "apply", "forward", "backward", "weight")))
        src, dst = draw(st.permutations(range(n)))[:2]
        level = draw(st.integers(0, {"prepare": prepare, "apply": apply}.get(of, [1] * n)[src] - 1))
        if of != "apply" or level + 1 < apply[dst]:
            exchanges[of, src, dst, level] = Exchange(of, src, dst, level, draw(SECONDS))
    return PipelineCosts(
        tuple(forward),
        tuple(backward),
        tuple(weight),
        prepare_s=tuple(draw(SECONDS) for _ in range(n)),
        apply_s=tuple(draw(SECONDS) for _ in range(n)),
        edges=tuple(edges),
        groups=tuple(s % groups for s in range(n)),
        activation_bytes=tuple(draw(st.integers(0, 9)) for _ in range(n)),
        static_bytes=tuple(draw(st.integers(0, 99)) for _ in range(groups)),
        prepare_levels=tuple(prepare),
        apply_levels=tuple(apply),
        exchanges=tuple(exchanges.values()),
    )


def mutations(schedule: ScheduledStep) -> Iterator[tuple[str, ScheduledStep]]:
    """Every schedule that differs by one task left out, repeated, exchanged with a different one, or moved."""
    lists = schedule.tasks
    places = [(group, at) for group, tasks in enumerate(lists) for at in range(len(tasks))]
    ends = [(group, at) for group, tasks in enumerate(lists) for at in range(len(tasks) + 1)]
    for first in places:
        yield f"drop {first}", mutate(schedule, "drop", first, first)
        for other in ends:
            yield f"repeat {first} at {other}", mutate(schedule, "repeat", first, other)
            if first[0] != other[0] or other[1] not in (first[1], first[1] + 1):
                yield f"move {first} to {other}", mutate(schedule, "move", first, other)
        for second in places:
            if first < second:
                yield f"swap {first} and {second}", mutate(schedule, "swap", first, second)


def mutate(schedule: ScheduledStep, how: str, first: tuple[int, int], second: tuple[int, int]) -> ScheduledStep:
    """One mutation: `drop` the first place, or `repeat`, `move` or `swap` its task at the second."""
    lists = [list(tasks) for tasks in schedule.tasks]
    (group, at), (other, to) = first, second
    task = lists[group][at]
    if how == "swap":
        lists[group][at], lists[other][to] = lists[other][to], task
    elif how == "repeat":
        lists[other].insert(to, task)
    else:
        del lists[group][at]
        if how == "move":
            lists[other].insert(to - (group == other and to > at), task)
    return replace(schedule, tasks=tuple(tuple(tasks) for tasks in lists))
