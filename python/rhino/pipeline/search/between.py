"""What the replicas of a stage exchange once a step: sums of what each accumulated, and the parameters each updated.

Owns bytes and seconds of that, and what a device holds with a distributed optimizer. Chooses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rhino.machine import Cluster
from rhino.machine.collectives import CommModel
from rhino.pipeline.cut.plan import StagePlan
from rhino.pipeline.search.candidates import Shape
from rhino.pipeline.search.distributed import Distributed
from rhino.pipeline.search.fragment_lives import Span
from rhino.pipeline.search.placement import Placement, part_of
from rhino.pipeline.search.sharded import Layouts, Prepared, Sharded
from rhino.sharding.time_model import TimeModel


@dataclass(frozen=True, slots=True)
class ReplicaBytes:
    """Bytes on a device of a stage, of whole tensors: what its replicas sum, sum in parts, and gather from parts."""

    summed: int = 0
    scattered: int = 0
    gathered: int = 0

    def collectives(self, comm: CommModel) -> Iterator[tuple[str, int]]:
        """The collectives that XLA makes of them, one of each kind, with these bytes."""
        scatter = comm.lowered("reduce-scatter")
        for kind, nbytes in ("all-reduce", self.summed), (scatter, self.scattered), ("all-gather", self.gathered):
            if nbytes:
                yield kind, nbytes


@dataclass(frozen=True, slots=True)
class BetweenReplicas:
    """By stage, what its replicas exchange, each as (kind, bytes), and the seconds of that.

    `distributed` is the part of the update that they share out.
    """

    distributed: Distributed
    collectives: tuple[tuple[tuple[str, int], ...], ...]
    seconds: tuple[float, ...]

    def held(self, prepared: Prepared, sharded: Sharded, replicas: int) -> tuple[Sequence[int], Sequence[Span]]:
        """Bytes of each value on one device, and spans of copies beside them: `Sharded.local` and `copies`."""
        shared = self.distributed
        if not shared.dims:
            return sharded.local, sharded.copies
        graph = prepared.graph
        local = list(sharded.local)
        for v in shared.parts:
            local[v] //= replicas
        # Gathers are few and large, and wait for each other: parts stand beside what they become.
        made = [(v, local[v] // replicas, graph.values[v].producer, len(graph.ops)) for v in sorted(shared.parameters)]
        return local, [*sharded.copies, *made]


def between_replicas(
    prepared: Prepared, layouts: Layouts, plan: StagePlan, shape: Shape, placement: Placement, shared: Distributed
) -> BetweenReplicas:
    """The exchange of a pipeline with such a part of its update shared out."""
    if shape.replicas == 1:
        return BetweenReplicas(shared, ((),) * shape.stages, (0.0,) * shape.stages)
    comm = {w: _between(placement.cluster, shape.replicas, w) for w in shape.distinct}
    made = [
        tuple(held.collectives(comm[w]))
        for held, w in zip(_held(prepared, layouts, plan, shape, shared), shape.stage_widths, strict=True)
    ]
    seconds = [
        sum(comm[w].time(kind, (0,), nbytes) for kind, nbytes in found)
        for found, w in zip(made, shape.stage_widths, strict=True)
    ]
    return BetweenReplicas(shared, tuple(made), tuple(seconds))


def summing_seconds(cluster: Cluster, shape: Shape, nbytes: int) -> float:
    """Seconds in which equal stages sum what their replicas accumulated, so many bytes in all stages together."""
    if shape.replicas == 1:
        return 0.0
    comm = _between(cluster, shape.replicas, shape.width)
    return comm.time("all-reduce", (0,), nbytes / sum(shape.widths))


def _between(cluster: Cluster, replicas: int, width: int) -> CommModel:
    """Collectives in which each device of a replica exchanges its part with the same part of the others."""
    return TimeModel(part_of(cluster, replicas * width)).comm((replicas, width))


def _held(
    prepared: Prepared, layouts: Layouts, plan: StagePlan, shape: Shape, shared: Distributed
) -> Iterator[ReplicaBytes]:
    """By stage: what the loop accumulates, parts of one gradient in every stage that has one, and next parameters."""
    graph = prepared.graph
    by_stage = [layouts[width] for width in shape.stage_widths]
    summed, scattered, gathered = ([0] * shape.stages for _ in range(3))
    for start, result, stages in accumulated(prepared, plan):
        for s in stages:
            nbytes = by_stage[s].local[start] or graph.values[start].nbytes
            (scattered if result in shared.sums else summed)[s] += nbytes
    for v in sorted(shared.parameters):
        s = plan.stage_of_op[graph.values[v].producer]
        gathered[s] += by_stage[s].local[v]
    return (ReplicaBytes(*held) for held in zip(summed, scattered, gathered, strict=True))


def accumulated(prepared: Prepared, plan: StagePlan) -> Iterator[tuple[int, int, list[int]]]:
    """What the loop accumulates: what that starts with, the loop's result, and the stages that do, its own first."""
    graph, step = prepared.graph, prepared.ready.step
    shared = {step.carries[c].result: parts for c, parts in plan.sums.items()}
    for start, _, carried, yielded, result in graph.ops[step.loop].ties[1:]:
        makers = [graph.values[v].producer for v in (yielded, *shared.get(result, ()))]
        if makers[0] >= 0 and plan.stage_of_op[makers[0]] >= 0 and carried != yielded:
            yield start, result, list(dict.fromkeys(plan.stage_of_op[maker] for maker in makers))
