"""The edges of a pipelined step: the transfers that one send of the schedule means, planned and sent together.

Owns this grouping. Knows neither plans nor when anything runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from rhino.pipeline.program.program import PipelineProgram, Transfer


@dataclass(frozen=True, slots=True)
class PipelineEdge:
    """Transfers from one stage to another that travel together, in program order.

    `of` is the kind of task that makes their sources: "forward" or "backward" where they travel in every micro-batch;
    once per step "prepare", "apply", or "loop" for what the loop over micro-batches leaves.
    """

    of: str
    level: int
    from_stage: int
    to_stage: int
    looped: bool
    transfers: tuple[Transfer, ...]

    @property
    def name(self) -> str:
        """For people, and unique in a program: "forward 0 -> 1", "prepare 0 -> 2, level 1"."""
        level = f", level {self.level}" if self.level else ""
        return f"{self.of} {self.from_stage} -> {self.to_stage}{level}"


def edges_of(program: PipelineProgram) -> tuple[PipelineEdge, ...]:
    """The edges in the order of their first transfers. A transfer that changes nothing is on none."""
    names: dict[int, int] = {}
    left = {carry.result for carry in program.carries}
    looped = {op.index for op in program.body if isinstance(op, Transfer)}
    found: dict[tuple[str, int, int, int, bool], list[Transfer]] = {}
    for transfer in program.transfers:
        source, target = program.values[transfer.source], program.values[transfer.target]
        origin = transfer.source
        while origin in names:
            origin = names[origin]
        if (source.group, source.sharding) == (target.group, target.sharding):
            names[transfer.target] = transfer.source
            continue
        ends = transfer.from_stage, transfer.to_stage
        if transfer.index in looped:
            key = ("forward" if ends[1] > ends[0] else "backward", 0, *ends, True)
        else:
            key = ("loop" if origin in left else transfer.of, transfer.level, *ends, False)
        found.setdefault(key, []).append(transfer)
    return tuple(PipelineEdge(*key, tuple(transfers)) for key, transfers in found.items())
