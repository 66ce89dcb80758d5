"""Which operations make which fragment, what each fragment reads and gives, and what travels between stages.

Owns the decisions of rhino-form-fragments, on the step as `staged_program` reads it. Builds no IR.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.dialect.attributes import RhinoRole
from rhino.ir.diagnostics import PassError
from rhino.ir.fragments.data import Export, FragmentDraft, FragmentPlace, FragmentPlan, Returned
from rhino.ir.fragments.layouts import Dims, GroupLayouts, Meshes
from rhino.ir.fragments.staged_program import (
    BEFORE,
    BODY,
    Home,
    Source,
    StagedOp,
    StagedProgram,
    StepInput,
    infer_homes,
    live_nodes,
    read_staged,
)
from rhino.ir.fragments.stored_slices import store_slices
from rhino.ir.pins import pinned_stage
from rhino.pipeline.program import awaited_ops, delayed_ops
from rhino.pipeline.schedule.tasks import IN_LOOP
from rhino.program.data import STATE


def plan_fragments(main: Any, groups: int, split_backward: bool, meshes: Meshes) -> FragmentPlan:
    """The fragments of @main. `groups` 0 means one per stage. Raises PassError where a rule of the stages is broken."""
    program = read_staged(main)
    store_slices(program)
    live, carries = live_nodes(program)
    infer_homes(program, live)
    planner = _Planner(program, live, carries, groups, meshes)
    return planner.run(split_backward)


class _Planner:
    def __init__(
        self, program: StagedProgram, live: list[int], carries: list[int], groups: int, meshes: Meshes
    ) -> None:
        self.program, self.layouts = program, GroupLayouts(program, meshes)
        self.staged = [i for i in live if program.nodes[i].home is not None]
        stages = 1 + max((self.home(i).stage for i in self.staged), default=0)
        self.plan = FragmentPlan(program, stages, min(groups or stages, stages), self.layouts, [], carries)
        self.places: dict[int, FragmentPlace] = {}
        self.continued: set[Export] = set()
        self.drafts: dict[FragmentPlace, FragmentDraft] = {}
        self.carry_homes = {k: program.carry_home(k) for k in carries if not self.constant_carry(k)}
        self.plan.carries = list(self.carry_homes)
        self.attributes = functions.argument_attributes(program.main)
        self.results = functions.result_attributes(program.main)

    def constant_carry(self, k: int) -> bool:
        return self.program.loop.arguments[k] in self.program.alias

    def home(self, index: int) -> Home:
        home = self.program.nodes[index].home
        assert home is not None
        return home

    def run(self, split_backward: bool) -> FragmentPlan:
        self.find_owners()
        self.find_places(split_backward)
        for index in self.staged:
            node, place = self.program.nodes[index], self.places[index]
            self.draft(place).nodes.append(index)
            for root in self.program.node_roots(node):
                self.need(root, place, node)
        for k in self.plan.carries:
            self.carry(k)
        for i, pieces in enumerate(self.program.outputs):
            for source, rows in pieces:
                self.plan.results.append(self.result(source, i, rows))
        for source in self.plan.owners:
            self.plan.copies.setdefault(source, {0: None})  # nobody reads it
        self.plan.drafts = sorted(self.drafts.values(), key=lambda draft: draft.place.position)
        return self.plan

    def draft(self, place: FragmentPlace) -> FragmentDraft:
        return self.drafts.setdefault(place, FragmentDraft(place))

    def find_places(self, split_backward: bool) -> None:
        """Decide the fragment of each operation."""
        delayed: frozenset[int] = frozenset()
        if split_backward:
            reads, sent = self.waits("backward")
            delayed = delayed_ops({i: self.home(i).stage for i in reads}, reads, sent)
        last: dict[Home, int] = {}
        for index in self.staged:
            home, roots = self.home(index), self.program.node_roots(self.program.nodes[index])
            if home.phase in IN_LOOP:
                self.places[index] = FragmentPlace("weight" if index in delayed else home.phase, home.stage)
            else:
                level = self.level(roots, home.phase, home.stage)
                self.places[index] = FragmentPlace(home.phase, home.stage, level)
                last[home] = max(level, last.get(home, 0))
        # What no other stage waits for is done at the last level, where what it makes is used.
        awaited = awaited_ops(*self.waits("prepare")) | awaited_ops(*self.waits("update"))
        for index in self.staged:
            home = self.home(index)
            if home in last and index not in awaited:
                self.places[index] = FragmentPlace(home.phase, home.stage, last[home])

    def waits(self, phase: str) -> tuple[dict[int, list[int]], set[int]]:
        """What each operation of a phase reads of others in it, and those of them that other stages read."""
        reads: dict[int, list[int]] = {i: [] for i in self.staged if self.home(i).phase == phase}
        sent: set[int] = set()
        for index, found in reads.items():
            for root in self.program.node_roots(self.program.nodes[index]):
                made = self.program.producer.get(root)
                if made in reads:
                    found.append(made)
                    if self.home(made).stage != self.home(index).stage:
                        sent.add(made)
        return reads, sent

    # Where values are.

    def find_owners(self) -> None:
        """Decide the stage of each argument that is kept in one place; None for those copied to all that read them.

        What is pinned is kept where it is.
        """
        program, aliases = self.program, {}
        positions = {(i, rows): source for i, pieces in enumerate(program.outputs) for source, rows in pieces}
        for i, given in enumerate(self.attributes):
            if "tf.aliasing_output" in given:
                aliases[i] = ir.IntegerAttr(given["tf.aliasing_output"]).value
        readers: dict[StepInput, list[tuple[int, int]]] = {}
        for index in self.staged:
            rank = ("update", "forward", "prepare", "backward").index(self.home(index).phase)
            for root in program.node_roots(program.nodes[index]):
                if isinstance(root, StepInput):
                    readers.setdefault(root, []).append((rank, self.home(index).stage))
        slices = {source for source in program.alias.values() if isinstance(source, StepInput) and source.slice}
        stored = {source.index for source in slices}
        whole = [StepInput(i) for i in range(len(program.arguments)) if i not in stored]
        for source in sorted([*slices, *whole], key=lambda s: (s.index, s.slice)):
            given = self.attributes[source.index]
            role = RhinoRole.from_attr(given[RhinoRole.name]) if RhinoRole.name in given else ""
            first = min(readers.get(source, [(0, 0)]))[1]
            made = positions.get((aliases.get(source.index, -1), source.slice))
            owner: int | None = None
            pinned = pinned_stage(given, source.slice)
            if pinned is not None:
                owner = pinned
            elif made is not None and not isinstance(made, StepInput) and (home := self.home_of(made)) is not None:
                owner = home.stage
            elif made is not None or role in STATE:
                owner = first
            self.plan.owners[source] = owner
            if owner is not None:
                self.plan.copies[source] = {self.plan.group(owner): None}

    def home_of(self, source: Source) -> Home | None:
        """The home of a value that an operation or the loop makes."""
        carry = self.program.loop.carry_of(source)
        if carry is not None:
            return self.carry_homes[carry]
        node = self.program.node_of(source)
        return None if node is None else node.home

    def level(self, roots: Sequence[Source], phase: str, stage: int) -> int:
        """The level at which all of `roots` are at hand on a stage, before or after the loop."""
        return max((self.available(root, phase, stage) for root in roots), default=0)

    def available(self, root: Source, phase: str, stage: int) -> int:
        if isinstance(root, StepInput):
            owner = self.plan.owners[root]
            near = owner is None or self.plan.group(owner) == self.plan.group(stage)
            return 0 if near or phase == "update" else 1
        home = self.plan.home(root)
        index = self.program.producer.get(root)
        if index is not None and self.program.nodes[index].region == BEFORE and phase == "update":
            return 0
        if index is None:  # sums arrive before the first level
            return 0
        return self.places[index].level + (home.stage != stage)

    def need(self, source: Source, place: FragmentPlace, node: StagedOp | None) -> None:
        """Record that a fragment reads a value from outside it."""
        loop, plan = self.program.loop, self.plan
        if isinstance(source, StepInput):
            self.draft(place).operands[source] = None
            owner = plan.owners[source]
            if owner is None:
                plan.copies.setdefault(source, {})[plan.group(place.stage)] = None
            elif plan.group(owner) != plan.group(place.stage):
                plan.transfers.setdefault(source, {})[place.stage] = None
            return
        if source == loop.counter:
            self.draft(place).operands[source] = None
            return
        home = self.plan.home(source)
        index = self.program.producer.get(source)
        made = None if index is None else self.places[index]
        if made == place:
            return
        if node is not None and node.region == BODY:
            self.check_edge(source, made, place, node)
        self.draft(place).operands[source] = None
        if made is not None:
            self.draft(made).exports[plan.usual(source)] = None
        if plan.group(home.stage) != plan.group(place.stage):
            plan.transfers.setdefault(source, {})[place.stage] = None

    def check_edge(self, source: Any, made: FragmentPlace | None, place: FragmentPlace, node: StagedOp) -> None:
        """Raise PassError at an operation of the loop that reads what its stage cannot have."""
        if made is None:
            carry = self.program.loop.carry_of(source)
            assert carry is not None
            home = self.carry_homes[carry]
            if home.stage != place.stage:
                message = (
                    f"operation of stage {place.stage} reads a value that the loop carries and stage {home.stage} "
                    "updates: micro-batches would run one after the other"
                )
                raise PassError(
                    node.op, message, ["let each stage accumulate its own part and add them after the loop"]
                )
            return
        why = ""
        if made.kind == place.kind == "forward" and made.stage > place.stage:
            why = "forward edges go to later stages"
        elif made.kind == place.kind == "backward" and made.stage < place.stage:
            why = "backward edges go to earlier stages"
        elif made.kind in IN_LOOP[1:] and place.kind == "forward":
            why = "the forward part comes first"
        if why:
            message = (
                f"{place.kind} operation of stage {place.stage} reads a value that the {made.kind} part of stage "
                f"{made.stage} makes, but {why}"
            )
            made_by = self.program.node_of(source)
            assert made_by is not None
            raise PassError(node.op, message, [(made_by.op, "made here")])

    # What the loop carries and what the step returns.

    def carry(self, k: int) -> None:
        loop, home = self.program.loop, self.carry_homes[k]
        group = self.plan.group(home.stage)
        dims = self.layouts.of(loop.arguments[k], group)
        following = self.program.source(loop.next[k])
        made = Export(following, dims, group)
        if made in self.continued:  # two carries must not share a buffer
            made = Export(following, dims, group, k)
        self.continued.add(made)
        self.plan.next[k] = made
        self.draft(self.places[self.program.producer[following]]).exports[made] = None
        initial = self.program.source(loop.initial[k])
        self.plan.initial[k] = self.place_value(initial, "prepare", home.stage, dims, k)

    def result(self, source: Source, i: int, rows: tuple[tuple[int, int], ...]) -> Returned:
        """How a result is returned: what it is on the group that has it, in the layout asked for."""
        pinned = pinned_stage(self.results[i], rows)
        if pinned is not None:
            stage = pinned
        elif isinstance(source, StepInput):
            owner = self.plan.owners[source]
            stage = owner if owner is not None else min(self.plan.copies.get(source, (0,)))
        elif (home := self.home_of(source)) is not None:
            stage = home.stage
        else:
            stage = self.result_stage(source, i, rows)
        dims = self.layouts.of_result(i, source, self.plan.group(stage))
        return Returned(i, rows, self.place_value(source, "update", stage, dims, -1), stage)

    def result_stage(self, source: Source, i: int, rows: tuple[tuple[int, int], ...]) -> int:
        """The stage of a result any stage can compute: of the argument whose buffer it takes, or of what it reads."""
        for j, given in enumerate(self.attributes):
            if "tf.aliasing_output" in given and ir.IntegerAttr(given["tf.aliasing_output"]).value == i:
                owner = self.plan.owners[StepInput(j, rows)]
                return owner or 0
        homes = [self.home_of(root) for root in self.program.roots(source) if not isinstance(root, StepInput)]
        return next((home.stage for home in homes if home is not None), 0)

    def place_value(self, source: Source, kind: str, stage: int, dims: Dims | None, tag: int) -> Export:
        """Have a value on a stage before or after the loop, in a layout; by a fragment only where it takes one."""
        roots, group = self.program.roots(source), self.plan.group(stage)
        if roots == (source,):
            index = None if isinstance(source, StepInput) else self.program.producer.get(source)
            if self.layouts.of(source, group) == dims:
                usual = self.plan.usual(source)
                if index is not None:
                    self.draft(self.places[index]).exports[usual] = None
                self.fetch(source, stage)
                return usual
            if index is not None and (home := self.home_of(source)) is not None and home.stage == stage:
                self.draft(self.places[index]).exports[Export(source, dims, group)] = None
                return Export(source, dims, group)
        place = FragmentPlace(kind, stage, self.level(roots, kind, stage))
        for root in roots:
            self.need(root, place, None)
        made = Export(source, dims, group, tag)
        self.draft(place).exports[made] = None
        return made

    def fetch(self, source: Source, stage: int) -> None:
        """Have a value at a stage that has it elsewhere, without a fragment that reads it."""
        plan = self.plan
        if isinstance(source, StepInput):
            owner = plan.owners[source]
            if owner is None:
                plan.copies.setdefault(source, {})[plan.group(stage)] = None
                return
        else:
            owner = plan.home(source).stage
        if plan.group(owner) != plan.group(stage):
            plan.transfers.setdefault(source, {})[stage] = None
