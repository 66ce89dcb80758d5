"""What the stages of a cut send each other once a step, and when: after which of their levels, or after the loop.

Owns the levels of prepare and apply, told from the graph as rhino-form-fragments tells them from the program. Knows no
seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rhino.pipeline.cut.plan import StagePlan, StageTransfer
from rhino.pipeline.cut.step import LoopForm


@dataclass(frozen=True, slots=True)
class OnceLevels:
    """The last level at which each stage computes, -1 for none; and of and level of each transfer once a step."""

    prepare: tuple[int, ...]
    update: tuple[int, ...]
    sent: dict[StageTransfer, tuple[str, int]]


def once_levels(step: LoopForm, plan: StagePlan, delayed: Collection[int], summed: Sequence[bool]) -> OnceLevels:
    """The levels of a cut.

    Args:
      delayed: backward ops that are in a weight fragment.
      summed: by stage, whether its replicas sum what the loop leaves before it is used.
    """
    return _Levels(step, plan, delayed, summed).run()


class _Levels:
    def __init__(self, step: LoopForm, plan: StagePlan, delayed: Collection[int], summed: Sequence[bool]) -> None:
        self.step, self.plan, self.delayed, self.summed = step, plan, delayed, summed
        self.known = {(t.value, t.dst, t.phase): t for t in plan.transfers}
        self.level: dict[int, int] = {}  # of values that are made before or after the loop
        self.yielded = {carry.result: carry.yielded for carry in step.carries}
        self.parts = {step.carries[c].result: parts for c, parts in plan.sums.items()}
        self.sent = {t.value for t in plan.transfers}

    def run(self) -> OnceLevels:
        step, plan = self.step, self.plan
        prepare = self.phase("prepare", step.before, {})
        combined = {i: c for c in plan.combinations for i in c.items}
        update = self.phase("update", step.after, {i: list(c.leaves) for i, c in combined.items()})
        once = [t for t in plan.transfers if t.phase in ("prepare", "update")]
        return OnceLevels(prepare, update, {t: self.of(t) for t in once})

    def phase(self, phase: str, items: tuple[int, ...], besides: dict[int, list[int]]) -> tuple[int, ...]:
        """Gives what the ops of a phase make its level; returns the last of each stage."""
        last = [-1] * self.plan.stages
        for i in self.step.staged(items):
            s = self.plan.stage_of_op[i]
            level = max((self.arrives(v, s, phase) for v in (*self.step.reads[i], *besides.get(i, ()))), default=0)
            self.level.update(dict.fromkeys(self.step.graph.ops[i].results, level))
            last[s] = max(last[s], level)
        return tuple(last)

    def arrives(self, v: int, stage: int, phase: str) -> int:
        """The level at which a stage has a value."""
        made = self.step.graph.values[v].producer
        own = self.level.get(v, 0) if made >= 0 and self.plan.phase_of_op[made] == phase else 0
        if v not in self.sent and v not in self.parts:
            return own
        # Parts of a sum come from each stage that has one.
        found = [self.known.get((u, stage, phase)) for u in (v, *self.parts.get(v, ()))]
        after = [
            level + 1
            for of, level in map(self.of, filter(None, found))
            if of == ("prepare", "apply")[phase == "update"]
        ]
        return max(own, *after) if after else own

    def of(self, t: StageTransfer) -> tuple[str, int]:
        """After what the source of a transfer is there: as in `rhino.pipeline.schedule.costs.Exchange`."""
        made = self.step.graph.values[self.yielded.get(t.value, t.value)].producer
        phase = self.plan.phase_of_op[made] if made >= 0 else ""
        if phase in ("forward", "backward"):
            if self.summed[t.src]:
                return "apply", 0
            return "weight" if made in self.delayed else phase, 0
        return "apply" if phase == "update" else "prepare", self.level.get(t.value, 0)
