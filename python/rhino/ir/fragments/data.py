"""What fragments a step becomes, as data: which operations each has, what it reads and gives, what travels.

Owns the form of the plan that `fragment_plan` makes and `fragment_build` writes. Decides nothing, builds no IR.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rhino.ir.fragments.layouts import Dims, GroupLayouts
from rhino.ir.fragments.staged_program import BODY, Home, Source, StagedProgram, StepInput
from rhino.pipeline.schedule.tasks import IN_LOOP


@dataclass(frozen=True, slots=True)
class FragmentPlace:
    """A fragment: its kind, stage and level (0 in the loop)."""

    kind: str
    stage: int
    level: int = 0

    @property
    def position(self) -> tuple[int, int, int]:
        """Its order in the text: stages forward, then backward; before and after the loop level by level."""
        kinds = ("prepare", "forward", "backward", "weight", "update")
        return kinds.index(self.kind), self.level, -self.stage if self.kind in IN_LOOP[1:] else self.stage


@dataclass(frozen=True, slots=True)
class Export:
    """What a fragment of a group gives: a value in a layout. `tag` keeps apart values that must not share a buffer."""

    source: Source
    dims: Dims | None
    group: int
    tag: int = -1


@dataclass(frozen=True, slots=True)
class Returned:
    """A result of the new step: the original one or rows of it, and the stage that has it."""

    index: int
    rows: tuple[tuple[int, int], ...]
    export: Export
    stage: int


@dataclass(slots=True)
class FragmentDraft:
    """A fragment to be: its operations with a home in program order, and, in order of first use, what it reads."""

    place: FragmentPlace
    nodes: list[int] = field(default_factory=list)
    operands: dict[Source, None] = field(default_factory=dict)
    exports: dict[Export, None] = field(default_factory=dict)


@dataclass(slots=True)
class FragmentPlan:
    """Everything that the builder needs. `carries` are the live ones; `initial` starts each, `next` goes on with it.

    `owners` has the stage of an argument kept in one place; `copies` the groups that have an argument of their own;
    `transfers` the stages that a value goes to.
    """

    program: StagedProgram
    stages: int
    groups: int
    layouts: GroupLayouts
    drafts: list[FragmentDraft]
    carries: list[int] = field(default_factory=list)
    owners: dict[StepInput, int | None] = field(default_factory=dict)
    copies: dict[StepInput, dict[int, None]] = field(default_factory=dict)
    transfers: dict[Source, dict[int, None]] = field(default_factory=dict)
    initial: dict[int, Export] = field(default_factory=dict)
    next: dict[int, Export] = field(default_factory=dict)
    results: list[Returned] = field(default_factory=list)

    def group(self, stage: int) -> int:
        """The group of a stage."""
        return stage % self.groups

    def home(self, source: Source) -> Home:
        """Where a value is that an operation or the loop makes."""
        carry = self.program.loop.carry_of(source)
        node = self.program.node_of(source)
        home = self.program.carry_home(carry) if carry is not None else node.home if node is not None else None
        assert home is not None
        return home

    def usual(self, source: Source) -> Export:
        """A value where it is made, in the layout that all who read it there expect."""
        owner = self.owners[source] if isinstance(source, StepInput) else self.home(source).stage
        group = self.group(owner or 0)
        return Export(source, self.layouts.of(source, group), group)

    def is_usual(self, export: Export) -> bool:
        """Whether an export is not for one purpose only."""
        return export.tag < 0 and export.dims == self.layouts.of(export.source, export.group)

    def in_loop(self, source: Source) -> bool:
        """Whether a value exists once per micro-batch."""
        node = self.program.node_of(source)
        if node is not None:
            return node.region == BODY
        return self.program.loop.carry_of(source) is not None and not self.program.loop.is_result(source)

    def carry_stage(self, k: int) -> int:
        """The stage that updates a carry."""
        return self.program.carry_home(k).stage
