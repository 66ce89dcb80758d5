"""A bound on the step time of a schedule without making it: for pruning a search before simulation.

Owns the bound: no schedule of that name ends earlier. It is exact for many chains of equal stages.
"""

from __future__ import annotations

from collections.abc import Sequence

from rhino.pipeline.schedule.costs import PipelineCosts
from rhino.pipeline.schedule.warmup import warmup_counts


def estimate_step_s(
    name: str,
    costs: PipelineCosts,
    microbatches: int,
    *,
    k: int | None = None,
    warmup: Sequence[int] | None = None,
    delay_weight: bool | None = None,
) -> float:
    """A lower bound on the simulated step time; the options are those of `make_schedule`.

    Every group computes all its tasks, after its first input can be there and before what must follow its last. Where
    warm-up counts tell the order (gpipe, 1f1b, eager-1f1b, and kfkb with k = 1), the cycles between two stages bound it
    too: each time round costs the computing and the transfers between them. For the other schedules what transfers
    cost in steady state is not in it.
    """
    split = costs.splittable() if delay_weight or name == "zero-bubble" else ()
    bound = _StepBound(costs, microbatches, split)
    best = bound.busiest_group()
    if name in ("gpipe", "1f1b", "eager-1f1b") or (name == "kfkb" and k == 1):
        counts = warmup_counts(name, costs.depths(), microbatches) if warmup is None else warmup
        best = max(best, bound.cycles([min(count, microbatches) for count in counts]))
    return best


class _StepBound:
    def __init__(self, costs: PipelineCosts, microbatches: int, split: Sequence[int]) -> None:
        n = costs.stages
        self.costs, self.m = costs, microbatches
        self.sent_s = [b - (costs.weight_s[s] if s in split else 0.0) for s, b in enumerate(costs.backward_s)]
        self.split = split
        self.forward_out: list[list[tuple[int, float]]] = [[] for _ in range(n)]
        self.backward_out: list[list[tuple[int, float]]] = [[] for _ in range(n)]
        for edge in costs.edges:
            if edge.forward_s is not None:
                self.forward_out[edge.src].append((edge.dst, edge.forward_s))
            if edge.backward_s is not None:
                self.backward_out[edge.dst].append((edge.src, edge.backward_s))
        prepare = [sum(costs.prepare_s[s] for s in costs.stages_of(g)) for g in range(costs.group_count)]
        self.apply = [sum(costs.apply_s[s] for s in costs.stages_of(g)) for g in range(costs.group_count)]
        # When the first forward of each stage can start, and how long after its last backward the step still takes.
        self.head = [prepare[costs.groups[s]] for s in range(n)]
        self.tail = [self.apply[costs.groups[s]] for s in range(n)]
        for s in range(n):
            for dst, seconds in self.forward_out[s]:
                self.head[dst] = max(self.head[dst], self.head[s] + costs.forward_s[s] + seconds)
            for src, seconds in self.backward_out[s]:
                self.tail[s] = max(self.tail[s], seconds + self.sent_s[src] + self.tail[src])

    def busiest_group(self) -> float:
        """The longest of: first input of a group, all its computing, what follows its last task."""
        costs = self.costs
        best = 0.0
        for group in range(costs.group_count):
            stages = costs.stages_of(group)
            head = min(self.head[s] for s in stages)
            sent = self.m * sum(costs.forward_s[s] + self.sent_s[s] for s in stages)
            all_s = self.m * sum(costs.forward_s[s] + costs.backward_s[s] for s in stages)
            # Weight parts may come last, and nothing but apply follows these.
            best = max(best, head + sent + min(self.tail[s] for s in stages), head + all_s + self.apply[group])
        return best

    def cycles(self, warmup: Sequence[int]) -> float:
        """The longest of the ways that go round between a stage and one it feeds as often as micro-batches allow.

        Once round: forward of micro-batch i from stage s to d; the backward that stage d runs next, of i - w_d + 1,
        back to s; then forward i - w_d + 1 + w_s of s, the first that comes after it in the list of s.
        """
        costs, m = self.costs, self.m
        stages = range(costs.stages)
        backs = [self._longest(range(d, -1, -1), self.backward_out, self.sent_s) for d in stages]
        best = 0.0
        for s in stages:
            for d, there in self._longest(stages[s:], self.forward_out, costs.forward_s).items():
                back = backs[d].get(s)
                start, ahead = warmup[d] - 1, warmup[s] - warmup[d] + 1
                if back is None or ahead < 1:
                    continue
                once = there + back + (costs.weight_s[s] if s in self.split else 0.0)
                most = max(0, m - 1 - start) // ahead
                for times in (0, most):
                    # Before: earlier forwards of s. After: all that is left in its list.
                    i = start + times * ahead
                    left = (m - i) * costs.forward_s[s] + (m - i - 1 + min(warmup[s], i + 1)) * self.sent_s[s]
                    best = max(best, self.head[s] + start * costs.forward_s[s] + times * once + left + self.tail[s])
        return best

    @staticmethod
    def _longest(
        order: range, out: Sequence[Sequence[tuple[int, float]]], seconds: Sequence[float]
    ) -> dict[int, float]:
        """For the stages reached from the first in order: most seconds from its task's start to their task's end."""
        found = {order[0]: seconds[order[0]]}
        for s in order:
            if s in found:
                for t, transfer in out[s]:
                    found[t] = max(found.get(t, 0.0), found[s] + transfer + seconds[t])
        return found
