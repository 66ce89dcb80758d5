"""What a pipeline costs, by its parts: seconds of fragments and of sends, and what stages hold.

Owns the way from these to `PipelineCosts`: the search's pipelines and those in a module go it alike. Knows neither
where the seconds come from nor when anything runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from rhino.pipeline.program.program import TASKS
from rhino.pipeline.program.stage_memory import StageMemory, group_bytes
from rhino.pipeline.schedule.costs import Edge, Exchange, PipelineCosts

# Of the shortest fragment, what a weight fragment without seconds counts for.
_LEAST = 1e-6


@dataclass(frozen=True, slots=True)
class FragmentSeconds:
    """Seconds of one execution of the fragments of a kind, stage and level."""

    kind: str
    stage: int
    level: int
    seconds: float


@dataclass(frozen=True, slots=True)
class StageSend:
    """Values that one stage sends another together, alone on its `links`.

    `looped` is in every micro-batch, of "forward" or "backward"; otherwise once a step, `of` and `level` as in
    `rhino.pipeline.schedule.costs.Exchange`.
    """

    of: str
    level: int
    src: int
    dst: int
    looped: bool
    seconds: float
    links: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PricedProgram:
    """All parts of a pipeline with what they cost. `groups` and `memory` are by stage; sends of one key add up.

    `task_s` is what a group's tasks take at least, as in `rhino.pipeline.schedule.costs.PipelineCosts`.
    """

    groups: tuple[int, ...]
    fragments: tuple[FragmentSeconds, ...]
    sends: tuple[StageSend, ...]
    memory: tuple[StageMemory, ...]
    task_s: float = 0.0

    def costs(self, limit_bytes: int = 0) -> PipelineCosts:
        """The pipeline as schedules see it, with this much room on each device; 0 for no limit."""
        groups = range(max(self.groups) + 1)
        stages = [[m for m, g in zip(self.memory, self.groups, strict=True) if g == group] for group in groups]
        held = [group_bytes(given) for given in stages]
        split = {f.stage for f in self.fragments if f.kind == "weight"}
        # A stage is split however little is left for later.
        least = min((f.seconds for f in self.fragments if f.seconds > 0), default=1.0) * _LEAST
        weight = [max(w, least) if s in split else 0.0 for s, w in enumerate(self._seconds("weight"))]
        return PipelineCosts(
            forward_s=tuple(self._seconds("forward")),
            backward_s=tuple(b + w for b, w in zip(self._seconds("backward"), weight, strict=True)),
            weight_s=tuple(weight),
            prepare_s=tuple(self._seconds("prepare")),
            apply_s=tuple(self._seconds("update")),
            edges=tuple(self._edges()),
            groups=self.groups,
            activation_bytes=tuple(m.saved_bytes for m in self.memory),
            static_bytes=tuple(static for static, _ in held),
            once_bytes=tuple(once for _, once in held),
            limit_bytes=(limit_bytes,) * len(groups) if limit_bytes else (),
            prepare_levels=self._levels("prepare"),
            apply_levels=self._levels("apply"),
            exchanges=tuple(self._exchanges()),
            task_s=self.task_s,
        )

    def _seconds(self, kind: str) -> list[float]:
        found = [0.0] * len(self.groups)
        for fragment in self.fragments:
            if fragment.kind == kind:
                found[fragment.stage] += fragment.seconds
        return found

    def _levels(self, task: str) -> tuple[int, ...]:
        """How many levels of prepare or apply each stage has: it computes or sends at the last."""
        found = [0] * len(self.groups)
        at = [(f.stage, f.level) for f in self.fragments if TASKS.get(f.kind, f.kind) == task]
        at += [(send.src, send.level) for send in self.sends if not send.looped and send.of == task]
        for stage, level in at:
            found[stage] = max(found[stage], level + 1)
        return tuple(found)

    def _edges(self) -> list[Edge]:
        ways: dict[tuple[int, int], float] = {}
        links: dict[tuple[int, int], tuple[str, ...]] = {}
        for send in self.sends:
            if send.looped:
                way = send.src, send.dst
                ways[way] = ways.get(way, 0.0) + send.seconds
                links.setdefault(way, send.links)
        ends = sorted({(min(way), max(way)) for way in ways})
        return [
            Edge(a, b, ways.get((a, b)), ways.get((b, a)), links.get((a, b), ()), links.get((b, a), ()))
            for a, b in ends
        ]

    def _exchanges(self) -> list[Exchange]:
        seconds: dict[tuple[str, int, int, int], float] = {}
        links: dict[tuple[str, int, int, int], tuple[str, ...]] = {}
        for send in self.sends:
            if not send.looped:
                key = send.of, send.src, send.dst, send.level
                seconds[key] = seconds.get(key, 0.0) + send.seconds
                links.setdefault(key, send.links)
        return [Exchange(*key, taken, links[key]) for key, taken in seconds.items()]
