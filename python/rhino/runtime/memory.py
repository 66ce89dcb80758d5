"""Memory of a pipelined step per device group: what the list of actions keeps, and what XLA needs while one runs.

Owns what is there when; the sweep is `rhino.program.memory.LiveBytes`. The fragments' own numbers are XLA's: the rows
of `rhino.pipeline.program.StageMemory` predict what this adds up. Knows neither jax nor how anything is run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from rhino.compile.memory_analysis import MemoryAnalysis
from rhino.ir.pipeline.program import local_bytes
from rhino.pipeline.program import PipelineProgram
from rhino.program.memory import LiveBytes
from rhino.runtime.script import UNREAD, RunFragment, Script

_Span = tuple[int, int, int]


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
    moments = [*enumerate(script.actions, 1)]  # 0 is between steps
    end = len(moments)
    dies = {slot: moment for moment, action in moments for slot in action.dead}
    # (bytes, first moment, last moment) by group, of arguments, of what is kept, and of what runs
    spans: list[tuple[list[_Span], ...]] = [([], [], []) for _ in program.meshes]
    for argument, slot in zip(program.arguments, script.arguments, strict=True):
        spans[where[slot]][0].append((size[slot], 0, dies.get(slot, end) if argument.donated else end))
    own: list[dict[int, str]] = [{0: "between steps"} for _ in program.meshes]
    for moment, action in moments:
        if isinstance(action, RunFragment):
            stats = fragments[action.fragment]
            if stats is not None:
                running = stats.temp_bytes + stats.output_bytes - stats.alias_bytes
                spans[action.group][2].append((running, moment, moment))
                own[action.group][moment] = str(action.task)
            made = [(slot, moment + 1) for slot in action.results if slot != UNREAD]
        else:
            own[where[action.target]][moment] = str(action.task)
            made = [(action.target, moment)]
        for slot, born in made:
            spans[where[slot]][1].append((size[slot], born, dies.get(slot, end)))
    return PipelineMemory(tuple(_at_most(group, spans[group], own[group]) for group in range(len(own))))


def _at_most(group: int, spans: Sequence[Sequence[_Span]], own: Mapping[int, str]) -> GroupMemory:
    """A group at the moment, of those when something of its own happens, at which it holds most."""
    held = LiveBytes()
    for span in chain.from_iterable(spans):
        held.add(*span)
    peak, when = held.highest(own.__contains__)
    arguments, kept, running = (sum(n for n, first, last in each if first <= when <= last) for each in spans)
    return GroupMemory(group, peak, arguments, kept, running, own[when])
