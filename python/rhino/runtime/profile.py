"""Measured tasks of a pipeline, one at a time, and the costs they give schedules and the simulator.

Owns the sums over actions. Knows neither jax nor how anything was measured.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from rhino.pipeline.program import PipelineProgram
from rhino.pipeline.schedule import Edge, PipelineCosts
from rhino.runtime.script import Action, RunFragment


@dataclass(frozen=True, slots=True)
class Timed:
    """An action and the seconds it took in each repeat."""

    action: Action
    seconds: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """The median of the repeats."""
        return statistics.median(self.seconds)


@dataclass(frozen=True, slots=True)
class Profile:
    """All actions of a step, each measured by itself."""

    program: PipelineProgram
    actions: tuple[Timed, ...]

    def fragment_s(self) -> tuple[float, ...]:
        """Per fragment, the median over its calls of the seconds of one."""
        found: list[list[float]] = [[] for _ in self.program.fragments]
        for timed in self.actions:
            if isinstance(timed.action, RunFragment):
                found[timed.action.fragment].append(timed.median_s)
        return tuple(statistics.median(seconds) for seconds in found)

    def transfer_s(self) -> tuple[float, ...]:
        """Per transfer, the median over its copies of the seconds of one; 0 for those within a group."""
        found: list[list[float]] = [[] for _ in self.program.transfers]
        for timed in self.actions:
            if not isinstance(timed.action, RunFragment) and timed.action.transfer >= 0:
                found[timed.action.transfer].append(timed.median_s)
        return tuple(statistics.median(seconds) if seconds else 0.0 for seconds in found)

    def total_s(self) -> float:
        """All actions back to back."""
        return sum(timed.median_s for timed in self.actions)

    def costs(self) -> PipelineCosts:
        """What a schedule of these stages costs. Exchanges once per step are left out: their sum is small."""
        program = self.program
        seconds = self.fragment_s()
        kinds = {kind: [0.0] * program.stages for kind in ("prepare", "forward", "backward", "weight", "update")}
        for fragment in program.fragments:
            kinds[fragment.kind][fragment.stage] += seconds[fragment.index]
        # The schedule's backward is whole.
        backward = [b + w for b, w in zip(kinds["backward"], kinds["weight"], strict=True)]
        moved: dict[tuple[int, int], list[float | None]] = {}
        looped = {op.index for op in program.body if not hasattr(op, "kind")}
        for transfer, cost in zip(program.transfers, self.transfer_s(), strict=True):
            if transfer.index in looped:
                low, high = sorted((transfer.from_stage, transfer.to_stage))
                ways = moved.setdefault((low, high), [None, None])
                way = int(transfer.from_stage > transfer.to_stage)
                ways[way] = (ways[way] or 0.0) + cost
        return PipelineCosts(
            forward_s=tuple(kinds["forward"]),
            backward_s=tuple(backward),
            weight_s=tuple(kinds["weight"]),
            prepare_s=tuple(kinds["prepare"]),
            apply_s=tuple(kinds["update"]),
            edges=tuple(Edge(a, b, there, back) for (a, b), (there, back) in sorted(moved.items())),
            groups=tuple(program.group_of(stage) for stage in range(program.stages)),
        )
