"""Zero-bubble order: weight gradients fill the gaps in which a group would wait (arXiv 2401.10241, ZB-H1's memory).

Owns the list scheduling that makes the order. It plays the pipeline forward in time and only ever runs what has its
inputs, so the lists it writes have at least one execution: they cannot deadlock, on any graph of stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from rhino.errors import NothingFits
from rhino.pipeline.schedule.costs import PipelineCosts
from rhino.pipeline.schedule.tasks import IN_LOOP
from rhino.pipeline.schedule.wiring import Step


def caps_in_flight(costs: PipelineCosts, microbatches: int) -> tuple[int, ...]:
    """The most micro-batches each stage may hold: what 1F1B's first stage holds, less where memory ends.

    Raises:
      RhinoError: a group has no room for one micro-batch of each of its stages.
    """
    deepest = max(costs.depths())
    caps = [0] * costs.stages
    for group in range(costs.group_count):
        stages = costs.stages_of(group)
        cap = min(microbatches, -(-deepest // len(stages)))
        each = sum(costs.activation_bytes[s] for s in stages)
        if costs.limit_bytes and each:
            cap = min(cap, max(0, costs.limit_bytes[group] - costs.static_bytes[group]) // each)
            if cap < 1:
                raise NothingFits(
                    f"group {group} has no room for one micro-batch of its stages, {each} bytes beside "
                    f"{costs.static_bytes[group]} of {costs.limit_bytes[group]}",
                    "use more micro-batches, which are smaller, or more stages",
                )
        for stage in stages:
            caps[stage] = cap
    return tuple(caps)


def zero_bubble_order(
    costs: PipelineCosts, microbatches: int, caps: Sequence[int], split: Sequence[int], patience: float
) -> list[list[Step]]:
    """Per group the order of computing: a backward that can run, else a forward within the cap, else a weight part.

    A weight part waits while a forward or backward is due within `patience` of the time it would take.
    """
    return _Play(costs, microbatches, caps, split, patience).run()


class _Play:
    """One run of the pipeline in time; links are free when wanted."""

    def __init__(
        self, costs: PipelineCosts, microbatches: int, caps: Sequence[int], split: Sequence[int], patience: float
    ) -> None:
        n = costs.stages
        self.m, self.caps, self.patience, self.groups = microbatches, caps, patience, costs.groups
        self.split = [s in split for s in range(n)]
        self.weight_s = [costs.weight_s[s] if self.split[s] else 0.0 for s in range(n)]
        self.seconds = {
            "forward": costs.forward_s,
            "backward": [b - w for b, w in zip(costs.backward_s, self.weight_s, strict=True)],
            "weight": self.weight_s,
        }
        # Deeper stages first: what is furthest along is needed soonest.
        self.stages = [costs.stages_of(group)[::-1] for group in range(costs.group_count)]
        outs: dict[str, list[list[tuple[int, float]]]] = {
            "forward": [[] for _ in range(n)], "backward": [[] for _ in range(n)],
        }  # fmt: skip
        waits = {"forward": [0] * n, "backward": [0] * n}
        for edge in costs.edges:
            if edge.forward_s is not None:
                outs["forward"][edge.src].append((edge.dst, edge.forward_s))
                waits["forward"][edge.dst] += 1
            if edge.backward_s is not None:
                outs["backward"][edge.dst].append((edge.src, edge.backward_s))
                waits["backward"][edge.src] += 1
        self.outs = outs
        # Per kind, stage and micro-batch: inputs still to be sent, and when the last that was sent arrives.
        self.missing = {kind: [[waits[kind][s]] * microbatches for s in range(n)] for kind in outs}
        self.arrives = {kind: [[0.0] * microbatches for _ in range(n)] for kind in outs}
        self.next = {kind: [0] * n for kind in IN_LOOP}
        self.in_flight = [0] * n
        self.busy = [0.0] * len(self.stages)
        self.orders: list[list[Step]] = [[] for _ in self.stages]
        # (time, group): a moment at which the group may be able to start something.
        self.moments = [(0.0, group) for group in range(len(self.stages))]

    def run(self) -> list[list[Step]]:
        while self.moments:
            now, group = heappop(self.moments)
            if now >= self.busy[group]:
                self._start(group, now)
        return self.orders

    def _start(self, group: int, now: float) -> None:
        for kind in ("backward", "forward"):
            ready = [s for s in self.stages[group] if self._due(kind, s) <= now]
            if ready:
                # Among stages of a group the oldest micro-batch goes first, and the deepest stage of these.
                self._do(kind, min(ready, key=lambda s: (self.next[kind][s], -s)), group, now)
                return
        delayed = [s for s in self.stages[group] if self._due("weight", s) <= now]
        if delayed:
            stage = min(delayed, key=lambda s: (self.next["weight"][s], -s))
            soonest = min(self._due(kind, s) for kind in ("backward", "forward") for s in self.stages[group])
            if soonest - now < self.patience * self.weight_s[stage]:
                return  # there is a moment when it is due
            self._do("weight", stage, group, now)

    def _due(self, kind: str, stage: int) -> float:
        """When the stage's next task of a kind has its inputs; infinity while that is not known."""
        i = self.next[kind][stage]
        if kind == "weight":
            return 0.0 if self.split[stage] and i < self.next["backward"][stage] else float("inf")
        if i >= self.m or self.missing[kind][stage][i]:
            return float("inf")
        blocked = i >= self.next["forward"][stage] if kind == "backward" else self.in_flight[stage] >= self.caps[stage]
        return float("inf") if blocked else self.arrives[kind][stage][i]

    def _do(self, kind: str, stage: int, group: int, now: float) -> None:
        i = self.next[kind][stage]
        self.next[kind][stage] = i + 1
        self.orders[group].append((kind, stage, i))
        done = self.busy[group] = now + self.seconds[kind][stage]
        heappush(self.moments, (done, group))
        if kind == "forward":
            self.in_flight[stage] += 1
        elif kind == "weight" or not self.split[stage]:
            self.in_flight[stage] -= 1
        if kind == "weight":
            return
        for peer, seconds in self.outs[kind][stage]:
            self.missing[kind][peer][i] -= 1
            arrival = max(self.arrives[kind][peer][i], done + seconds)
            self.arrives[kind][peer][i] = arrival
            heappush(self.moments, (arrival, self.groups[peer]))
