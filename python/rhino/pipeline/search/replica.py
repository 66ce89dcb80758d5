"""What one replica of the best pipeline does in a step: the kernels it calls, and what its devices send.

Owns the shares. What an operation sends is counted in `breakdown`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rhino.machine.collectives import ring_bytes
from rhino.pipeline.search.breakdown import stage_traffic
from rhino.pipeline.search.solution import PipelineCandidate
from rhino.program.kernel_use import KernelUse
from rhino.sharding.kernels import kernel_uses


def kernels_of_replica(best: PipelineCandidate) -> list[KernelUse]:
    """What one replica calls of kernels in a step, each kernel as the stage has it that takes longest for it."""
    found: dict[tuple[object, ...], KernelUse] = {}
    for stage in range(best.shape.stages):
        ops = {o for o, s in enumerate(best.stages.stage_of_op) if s in (stage, -1)}
        for use in kernel_uses(best.layout_of(stage).solution, ops):
            if use.key not in found or use.time_s > found[use.key].time_s:
                found[use.key] = use
    return [_share(use, best.shape.replicas) for use in found.values()]


def traffic_of_replica(best: PipelineCandidate, stages: Sequence[int]) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes a device sends within its group in a step, for the stages of it, and executions, by kind of collective."""
    solution, replicas = best.layout_of(stages[0]).solution, best.shape.replicas
    traffic = stage_traffic(solution.costs, solution.states, best.stages.stage_of_op, best.stages.stages)
    sent: dict[str, float] = {}
    times: dict[str, int] = {}
    for s in stages:
        for kind, (nbytes, count) in traffic[s].items():
            sent[kind] = sent.get(kind, 0) + nbytes
            times[kind] = times.get(kind, 0) + count
    # A replica runs its share of the micro-batches; what runs once a step is counted with them.
    found = {kind: round(sent[kind] / replicas) for kind in sorted(sent)}
    counts = {kind: -(-times[kind] // replicas) for kind in sorted(times)}
    if replicas > 1:
        for kind, whole in (each for s in stages for each in best.pipeline.replicas.collectives[s]):
            found[kind] = found.get(kind, 0) + round(ring_bytes(kind, replicas, whole))
            counts[kind] = counts.get(kind, 0) + 1
    return found, counts


def _share(use: KernelUse, replicas: int) -> KernelUse:
    """What one replica has of the calls of a kernel: its share of the micro-batches."""
    return replace(
        use,
        count=-(-use.count // replicas),
        flops=-(-use.flops // replicas),
        sent_bytes=-(-use.sent_bytes // replicas),
        time_s=use.time_s / replicas,
        sent_s=use.sent_s / replicas,
    )
