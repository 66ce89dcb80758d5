"""The edges of a pipelined step: what is planned and sent together, by the schedule or because of the signature.

Owns this grouping. Knows neither plans nor when anything runs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rhino.pipeline.program.program import PipelineProgram, Result, StageArgument, Transfer
from rhino.program import SMALL_RESULT_BYTES

EVERYWHERE = -1  # in the place of a value: whole on every device of the step


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

    @property
    def parts(self) -> tuple[int, ...]:
        """Positions of the transfers in the program."""
        return tuple(transfer.index for transfer in self.transfers)

    @property
    def moves(self) -> tuple[tuple[int, int], ...]:
        """Of each part the value it moves, and the value it becomes."""
        return tuple((transfer.source, transfer.target) for transfer in self.transfers)

    @property
    def way(self) -> tuple[str, str]:
        """Strategy and scheduler."""
        return self.transfers[0].strategy, self.transfers[0].scheduler


@dataclass(frozen=True, slots=True)
class SignatureEdge:
    """What travels because the step takes it, or gives it, in several places; no task of the schedule means it.

    An "argument" is brought from the group that keeps it to another one that reads it, before a step. "results" are
    those of one group that are small and no state: behind a step every device has them whole.

    `number` is the position of the argument in `PipelineProgram.arguments`, or the group of the results. `parts` are
    positions in `arguments` or in `results`, `moves` and `way` as in `PipelineEdge`.
    """

    of: str
    number: int
    parts: tuple[int, ...]
    moves: tuple[tuple[int, int], ...]
    way: tuple[str, str]

    @property
    def name(self) -> str:
        """For people, and unique in a program: "argument 3", "results 1"."""
        return f"{self.of} {self.number}"


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


Edge = PipelineEdge | SignatureEdge


def all_edges(program: PipelineProgram) -> tuple[Edge, ...]:
    """The edges of the schedule, then those of the signature."""
    return (*edges_of(program), *signature_edges(program))


def signature_edges(program: PipelineProgram) -> tuple[SignatureEdge, ...]:
    """Arguments in their order, then results by group."""
    found: list[SignatureEdge] = []
    kept: dict[tuple[object, ...], StageArgument] = {}
    for position, argument in enumerate(program.arguments):
        first = kept.setdefault((argument.index, argument.slice), argument)
        if program.values[first.value].group != program.values[argument.value].group:
            way = argument.strategy, argument.scheduler
            found.append(SignatureEdge("argument", position, (position,), ((first.value, argument.value),), way))
    state = {argument.result for argument in program.arguments}
    pieces = Counter(result.index for result in program.results)
    told: dict[int, list[tuple[int, Result]]] = {}
    for position, result in enumerate(program.results):
        value = program.values[result.value]
        if pieces[result.index] == 1 and position not in state and value.nbytes <= SMALL_RESULT_BYTES:
            told.setdefault(value.group, []).append((position, result))
    for group, results in sorted(told.items()):
        moves = tuple((result.value, EVERYWHERE) for _, result in results)
        way = results[0][1].strategy, results[0][1].scheduler
        found.append(SignatureEdge("results", group, tuple(position for position, _ in results), moves, way))
    return tuple(found)
