"""Memory of a pipelined step per device group: what the list of actions keeps, and what XLA needs while one runs.

Owns the sum. The fragments' own numbers are XLA's: the rows of `rhino.pipeline.program.StageMemory` predict what this
adds up. Knows neither jax nor how anything is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rhino.compile.executable import MemoryAnalysis
from rhino.ir.pipeline.program import local_bytes
from rhino.pipeline.program import PipelineProgram
from rhino.runtime.script import UNREAD, RunFragment, Script


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """One device of a group at the moment it holds most, in bytes.

    Attributes:
      group: the device group.
      peak_bytes: the sum of the others.
      argument_bytes: the step's arguments that are still there.
      kept_bytes: what fragments made and others still need: saved activations, accumulators, results, what arrived.
      running_bytes: temporaries and new results of the fragment that runs.
      task: what runs.
    """

    group: int
    peak_bytes: int
    argument_bytes: int
    kept_bytes: int
    running_bytes: int
    task: str


@dataclass(frozen=True, slots=True)
class PipelineMemory:
    """All groups. `peak_bytes` is the largest of theirs."""

    groups: tuple[GroupMemory, ...]

    @property
    def peak_bytes(self) -> int:
        """What a device of the fullest group must have free."""
        return max(group.peak_bytes for group in self.groups)


def pipeline_memory(
    program: PipelineProgram, script: Script, fragments: Sequence[MemoryAnalysis | None]
) -> PipelineMemory:
    """The most that each group holds at once, when the actions happen in the order of the script.

    An argument that the caller does not give away stays to the end: the caller holds it.
    """
    size = [local_bytes(program, program.values[value]) for value in script.values]
    where = [program.values[value].group for value in script.values]
    groups = range(len(program.meshes))
    arguments, kept = [0] * len(groups), [0] * len(groups)
    given: set[int] = set()
    held: set[int] = set()
    for argument, slot in zip(program.arguments, script.arguments, strict=True):
        arguments[where[slot]] += size[slot]
        (given if argument.donated else held).add(slot)
    worst = [GroupMemory(g, arguments[g], arguments[g], 0, 0, "between steps") for g in groups]

    def note(group: int, running: int, task: str) -> None:
        total = arguments[group] + kept[group] + running
        if total > worst[group].peak_bytes:
            worst[group] = GroupMemory(group, total, arguments[group], kept[group], running, task)

    def drop(slots: Sequence[int]) -> None:
        for slot in slots:
            if slot in given:
                arguments[where[slot]] -= size[slot]
            elif slot not in held:
                kept[where[slot]] -= size[slot]

    for action in script.actions:
        if isinstance(action, RunFragment):
            stats = fragments[action.fragment]
            if stats is not None:
                note(action.group, stats.temp_bytes + stats.output_bytes - stats.alias_bytes, str(action.task))
            drop(action.dead)
            for slot in action.results:
                if slot != UNREAD:
                    kept[action.group] += size[slot]
        else:
            group = where[action.target]
            kept[group] += size[action.target]
            note(group, 0, str(action.task))
            drop(action.dead)
    return PipelineMemory(tuple(worst))
