"""Makes schedules by name: the order of computing, from which everything else in the lists follows.

Owns the names, their options, and the refusal of what cannot be. The order of each kind is made in its own module.
"""

from __future__ import annotations

from collections.abc import Sequence

from rhino.errors import NothingFits, NotPipelined, RhinoError
from rhino.pipeline.schedule.checker import memory_peak_bytes
from rhino.pipeline.schedule.costs import PipelineCosts
from rhino.pipeline.schedule.interleaved import interleaved_order
from rhino.pipeline.schedule.simulator import simulate
from rhino.pipeline.schedule.tasks import ONE_STAGE_PER_GROUP, SCHEDULES, ScheduledStep
from rhino.pipeline.schedule.warmup import falls_short, warmup_counts
from rhino.pipeline.schedule.wiring import Step, lower
from rhino.pipeline.schedule.zero_bubble import caps_in_flight, zero_bubble_order

_TRIED_K = (1, 2, 3, 4, 6, 8)
_TRIED_PATIENCE = (0.0, 0.5, 1.0)
_ZERO_BUBBLE_KINDS = len(_TRIED_PATIENCE) + 2


def make_schedule(
    name: str,
    costs: PipelineCosts,
    microbatches: int,
    *,
    k: int | None = None,
    warmup: Sequence[int] | None = None,
    delay_weight: bool | None = None,
    caps: Sequence[int] | None = None,
) -> ScheduledStep:
    """The task lists of a step.

    Args:
      name: one of SCHEDULES.
      k: of kfkb: micro-batches that go together. The fastest that fits, by simulation, when not given.
      warmup: instead of the counts that the name stands for (gpipe, 1f1b, kfkb, eager-1f1b): forwards of each stage
        before its first backward, such as `choose_warmup` gives. Must not rise along an edge.
      delay_weight: split backward: send its gradients before weight gradients are computed. By default only zero-bubble
        does; it always does.
      caps: of zero-bubble: most micro-batches in flight per stage; by default those of 1F1B's first stage.

    Raises:
      RhinoError: an unknown name, an option that the schedule does not have, or more in flight than fits in memory.
    """
    if name not in SCHEDULES:
        raise RhinoError(f"unknown schedule {name!r}", f"known are {', '.join(SCHEDULES)}")
    if microbatches < 1:
        raise RhinoError(f"{name} needs at least one micro-batch, got {microbatches}", "give 1 or more")
    _refuse(name, "k", k is not None, ("kfkb",))
    _refuse(name, "caps", caps is not None, ("zero-bubble",))
    _refuse(name, "warmup", warmup is not None, ONE_STAGE_PER_GROUP)
    if name == "zero-bubble":
        if delay_weight is False:
            raise NotPipelined("zero-bubble without delayed weight gradients is 1f1b", "ask for 1f1b")
        made = _zero_bubble(costs, microbatches, caps)
    elif name == "interleaved-1f1b":
        if any(group != s % costs.group_count for s, group in enumerate(costs.groups)):
            raise RhinoError(f"interleaved-1f1b deals stages to groups in turn, got {costs.groups}",
                             "run stage s on group s mod the number of groups, or use zero-bubble")  # fmt: skip
        split = _split(costs, bool(delay_weight))
        orders = interleaved_order(costs.stages, costs.group_count, microbatches)
        made = lower(name, costs, microbatches, [_with_weight(order, split) for order in orders], split, True)
    elif name == "kfkb" and k is None and warmup is None:
        made = _best_kfkb(costs, microbatches, bool(delay_weight))
    else:
        made = _alternating(name, costs, microbatches, 1 if k is None else k, warmup, bool(delay_weight))
    _check_memory(made, costs)
    return made


def _refuse(name: str, option: str, given: bool, takers: Sequence[str]) -> None:
    if given and name not in takers:
        raise RhinoError(f"{name} does not take {option}", f"{option} is for {', '.join(takers)}")


def _split(costs: PipelineCosts, delay_weight: bool) -> tuple[int, ...]:
    if not delay_weight:
        return ()
    if not any(costs.weight_s):
        raise NotPipelined("no stage has a weight part to delay", "give the seconds of weight gradients (weight_s)")
    return costs.splittable()


def _with_weight(order: Sequence[Step], split: Sequence[int], lag: int = 0) -> list[Step]:
    """Each weight part directly after its backward, whose gradients are then on their way, or `lag` backwards later."""
    found: list[Step] = []
    late: list[Step] = []
    for step in order:
        found.append(step)
        if step[0] == "backward" and step[1] in split:
            late.append(("weight", *step[1:]))
            if len(late) > lag:
                found.append(late.pop(0))
    return [*found, *late]


def _alternating(
    name: str, costs: PipelineCosts, microbatches: int, k: int, warmup: Sequence[int] | None, delay_weight: bool
) -> ScheduledStep:
    if costs.group_count < costs.stages:
        raise RhinoError(f"{name} runs one stage per group, got {costs.stages} stages on {costs.group_count} groups",
                         "use interleaved-1f1b or zero-bubble")  # fmt: skip
    if k < 1:
        raise RhinoError(f"kfkb needs groups of at least one micro-batch, got k = {k}", "give 1 or more")
    if warmup is None:
        warmup = warmup_counts(name, costs.depths(), microbatches, k)
    elif len(warmup) != costs.stages:
        raise RhinoError(f"warmup has {len(warmup)} counts, but there are {costs.stages} stages", "give one per stage")
    if any(count < min(k, microbatches) for count in warmup):
        raise RhinoError(f"warm-up counts {tuple(warmup)} are below {k}", "run that many forwards first, at least")
    rising = falls_short(costs, warmup)
    if rising is not None:
        src, dst = rising
        raise RhinoError(f"stage {src} runs {warmup[src]} forwards before it waits for stage {dst}, which runs "
                         f"{warmup[dst]} first", "let warm-up counts fall along every edge")  # fmt: skip
    split = _split(costs, delay_weight)
    orders: list[list[Step]] = [[]] * costs.stages
    for stage, group in enumerate(costs.groups):
        # A stage that sends and receives nothing forward gains nothing from groups of k.
        alone = not any(e.forward_s is not None and stage in (e.src, e.dst) for e in costs.edges)
        count = min(warmup[stage], microbatches)
        orders[group] = _with_weight(_after_warmup(stage, count, microbatches, 1 if alone else k), split)
    return lower(name, costs, microbatches, orders, split)


def _after_warmup(stage: int, warmup: int, microbatches: int, k: int) -> list[Step]:
    """`warmup` forwards, then k backwards and k forwards in turn."""
    order: list[Step] = [("forward", stage, i) for i in range(warmup)]
    for start in range(0, microbatches, k):
        order += (("backward", stage, i) for i in range(start, min(start + k, microbatches)))
        ahead = range(start + warmup, min(start + warmup + k, microbatches))
        order += (("forward", stage, i) for i in ahead)
    return order


def _best_kfkb(costs: PipelineCosts, microbatches: int, delay_weight: bool) -> ScheduledStep:
    """The k with the shortest step among those that fit; judged on fewer micro-batches where there are many."""
    sample = min(microbatches, 8 * costs.stages)
    best: tuple[float, int] | None = None
    for k in _TRIED_K:
        if k > 1 and (k > microbatches or not _fits(costs, warmup_counts("kfkb", costs.depths(), microbatches, k))):
            break
        step_s = simulate(_alternating("kfkb", costs, sample, k, None, delay_weight), costs).step_time_s
        if best is None or step_s < best[0]:
            best = step_s, k
    assert best is not None
    return _alternating("kfkb", costs, microbatches, best[1], None, delay_weight)


def _fits(costs: PipelineCosts, in_flight: Sequence[int]) -> bool:
    rooms = [costs.room(stage) for stage in range(costs.stages)]
    return all(room is None or count <= room for count, room in zip(in_flight, rooms, strict=True))


def _zero_bubble(costs: PipelineCosts, microbatches: int, caps: Sequence[int] | None) -> ScheduledStep:
    """The best of a few list schedules and, on groups of one stage, 1F1B with weight gradients during transfers."""
    split = _split(costs, True)
    if caps is None:
        caps = caps_in_flight(costs, microbatches)
    elif len(caps) != costs.stages or any(cap < 1 for cap in caps):
        raise RhinoError(f"caps {tuple(caps)} must be {costs.stages} counts of 1 or more", "give one per stage")
    # Judged on fewer micro-batches where there are many: what differs is how they fill, settle and drain.
    sample = min(microbatches, 8 * costs.stages)
    tried = [
        (simulate(schedule, costs).step_time_s, i)
        for i, schedule in enumerate(_zero_bubble_lists(costs, sample, caps, split, range(_ZERO_BUBBLE_KINDS)))
    ]
    return _zero_bubble_lists(costs, microbatches, caps, split, [min(tried)[1]])[0]


def _zero_bubble_lists(
    costs: PipelineCosts, microbatches: int, caps: Sequence[int], split: Sequence[int], kinds: Sequence[int]
) -> list[ScheduledStep]:
    """Schedules of the kinds asked for: list schedules of some patience first, then 1F1B where it applies."""
    made = []
    plain = warmup_counts("1f1b", costs.depths(), microbatches)
    fits = costs.group_count == costs.stages and all(w <= cap for w, cap in zip(plain, caps, strict=True))
    for kind in kinds:
        spare = kind - len(_TRIED_PATIENCE)
        if spare < 0:
            orders = zero_bubble_order(costs, microbatches, caps, split, _TRIED_PATIENCE[kind])
        elif fits:
            # 1F1B with its weight parts at once (0), or as late as the caps allow (1): ZB-H1.
            orders = [[] for _ in plain]
            for stage, group in enumerate(costs.groups):
                order = _after_warmup(stage, plain[stage], microbatches, 1)
                orders[group] = _with_weight(order, split, spare * (caps[stage] - plain[stage]))
        else:
            continue
        made.append(lower("zero-bubble", costs, microbatches, orders, split, late_forwards=True))
    return made


def _check_memory(schedule: ScheduledStep, costs: PipelineCosts) -> None:
    for group, limit in enumerate(costs.limit_bytes):
        peak = memory_peak_bytes(schedule.tasks[group], costs, group)
        if peak > limit:
            raise NothingFits(f"{schedule.name} needs {peak} bytes on group {group}, which has {limit}",
                             "use a schedule with fewer micro-batches in flight, or smaller ones")  # fmt: skip
