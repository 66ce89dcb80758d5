"""A pipelined step as one list of actions on a table of buffers: what to call, what to copy, what is dead after it.

Owns the merging of all groups' task lists into one order, the slots of the table, and which buffers may be reused
(docs/design/runtime.md, "From tasks to actions").
Knows neither jax nor MLIR.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rhino.errors import RhinoError
from rhino.pipeline.program import Fragment, PipelineProgram, Transfer, edges_of
from rhino.pipeline.schedule import ScheduledStep, Task

UNREAD = -1  # the slot of a result that nothing reads

# A value of one micro-batch, or of the step (-1).
_Key = tuple[int, int]

# Only the order of dispatch follows from these: the groups' own lists decide when anything runs.
_UNITS = {"forward": 1.0, "backward": 2.0, "weight": 1.0}


@dataclass(frozen=True, slots=True)
class RunFragment:
    """A fragment runs. Slots in `dead` hold nothing after it; `task` says what the schedule calls it."""

    task: Task
    group: int
    fragment: int
    operands: tuple[int, ...]
    results: tuple[int, ...]
    dead: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MoveValue:
    """A value moves to another slot, by a transfer; `transfer` -1 is a second copy of what is needed twice."""

    task: Task
    group: int
    transfer: int
    source: int
    target: int
    dead: tuple[int, ...] = ()


Action = RunFragment | MoveValue


@dataclass(frozen=True, slots=True)
class Script:
    """One step.

    Attributes:
      slots: the length of the table.
      arguments: the slot of each of `PipelineProgram.arguments`.
      counters: (slot, group, micro-batch) of the numbers that fragments read.
      actions: in an order in which each finds what it reads, and each group's are in the order of its list.
      results: the slot of each of `PipelineProgram.results`.
      donated: per fragment, the positions of the operands that are dead after each of its calls.
      values: per slot, the value it holds.
    """

    slots: int
    arguments: tuple[int, ...]
    counters: tuple[tuple[int, int, int], ...]
    actions: tuple[Action, ...]
    results: tuple[int, ...]
    donated: tuple[tuple[int, ...], ...]
    values: tuple[int, ...]


def make_script(program: PipelineProgram, schedule: ScheduledStep) -> Script:
    """The script of a program in the order of a schedule.

    Raises:
      RhinoError: the schedule is for another pipeline, leaves something out, or its lists wait for each other.
    """
    if (schedule.stages, schedule.microbatches) != (program.stages, program.microbatches):
        raise RhinoError(
            f"the schedule has {schedule.stages} stages and {schedule.microbatches} micro-batches, "
            f"and the program {program.stages} and {program.microbatches}",
            "schedule the module again",
        )
    if len(schedule.tasks) != len(program.meshes):
        raise RhinoError(
            f"the schedule has {len(schedule.tasks)} groups, and the program {len(program.meshes)}",
            "schedule the module again",
        )
    return _with_lifetimes(program, _Merger(program, schedule))


class _Merger:
    """Task lists become actions; every group's are issued as early as a group that takes one unit a task could."""

    def __init__(self, program: PipelineProgram, schedule: ScheduledStep) -> None:
        self.program = program
        self.schedule = schedule
        self.actions: list[Action] = []
        self.values: list[int] = []
        self.slots: dict[_Key, int] = {}
        self._ready: dict[_Key, float] = {}
        self._fragments: dict[tuple[str, int, int], list[Fragment]] = {}
        for fragment in program.fragments:
            self._fragments.setdefault((fragment.task, fragment.stage, fragment.level), []).append(fragment)
        self._carried = {carry.argument: carry for carry in program.carries}
        self._left = {carry.result: carry for carry in program.carries}
        # A transfer within a group that changes nothing is another name of its source.
        self._names: dict[int, int] = {}
        looped = {op.index for op in program.body if isinstance(op, Transfer)}
        for transfer in program.transfers:
            source, target = program.values[transfer.source], program.values[transfer.target]
            if (source.group, source.sharding) == (target.group, target.sharding):
                self._names[transfer.target] = transfer.source
        self._sends = {
            (edge.of, edge.level, edge.from_stage, edge.to_stage, edge.looped): edge.transfers
            for edge in edges_of(program)
        }
        self.counters = [
            (self._slot((value, m)), program.values[value].group, m)
            for value in program.counters
            if value >= 0
            for m in range(program.microbatches)
        ]
        self._ready.update((key, 0.0) for key in self.slots)
        self._copied = self._shared_initials()
        self._unsent = self._never_sent(looped)
        self.arguments = [self._slot((argument.value, -1)) for argument in program.arguments]
        for argument in program.arguments:
            self._made((argument.value, -1), 0.0, Task("prepare", 0, level=0))
        self._merge()
        self.results = self._results()

    # --- names of things --------------------------------------------------------------------------------------------

    def key(self, value: int, microbatch: int) -> _Key:
        """The value itself, of whatever name: what a carry holds in this micro-batch is what the last one made."""
        while True:
            if value in self._names:
                value = self._names[value]
            elif value in self._left:
                value, microbatch = self._left[value].next, self.program.microbatches - 1
            elif value in self._carried:
                carry = self._carried[value]
                if microbatch == 0:
                    # The copy that this carry may consume stands for its own name.
                    return (carry.argument, 0) if carry.argument in self._copied else self.key(carry.initial, -1)
                value, microbatch = carry.next, microbatch - 1
            else:
                return value, -1 if self.program.values[value].scope == "step" else microbatch

    def _slot(self, key: _Key) -> int:
        if key not in self.slots:
            self.slots[key] = len(self.values)
            self.values.append(key[0])
        return self.slots[key]

    def _meant(self, task: Task) -> Sequence[Transfer]:
        """The transfers of the edge that a send or a recv means."""
        assert task.of is not None
        ends = (task.stage, task.peer) if task.kind == "send" else (task.peer, task.stage)
        looped = task.microbatch is not None
        of = "loop" if task.microbatch is None and task.of in _UNITS else task.of
        if looped and of == "weight":
            of = "backward"
        assert ends[0] is not None and ends[1] is not None
        return self._sends.get((of, task.level or 0, ends[0], ends[1], looped), ())

    def _shared_initials(self) -> dict[int, int]:
        """Carries whose first value is needed elsewhere too: each starts from a copy, which it may consume."""
        kept = {argument.value for argument in self.program.arguments if not argument.donated}
        kept |= {self._named(result.value) for result in self.program.results}
        read = [carry.initial for carry in self.program.carries]
        for op in self.program.operations:
            if isinstance(op, Fragment):
                read += op.operands
            elif op.target not in self._names:
                read.append(op.source)
        uses = Counter(map(self._named, read))
        roots = {carry.argument: self._named(carry.initial) for carry in self.program.carries}
        return {argument: root for argument, root in roots.items() if uses[root] > 1 or root in kept}

    def _named(self, value: int) -> int:
        while value in self._names:
            value = self._names[value]
        return value

    def _never_sent(self, looped: set[int]) -> dict[_Key, list[tuple[Transfer, int]]]:
        """By source, the transfers that no task of the schedule means: they follow what makes their source."""
        sends = [task for tasks in self.schedule.tasks for task in tasks if task.kind == "send"]
        sent = {(t.index, task.microbatch) for task in sends for t in self._meant(task)}
        found: dict[_Key, list[tuple[Transfer, int]]] = {}
        for transfer in self.program.transfers:
            if transfer.target in self._names:
                continue
            rounds: Sequence[int | None] = range(self.program.microbatches) if transfer.index in looped else (None,)
            for m in rounds:
                if (transfer.index, m) not in sent:
                    number = -1 if m is None else m
                    found.setdefault(self.key(transfer.source, number), []).append((transfer, number))
        return found

    # --- order ------------------------------------------------------------------------------------------------------

    def _merge(self) -> None:
        lists = [deque(tasks) for tasks in self.schedule.tasks]
        free_at = [0.0] * len(lists)
        waits: list[_Key | None] = [None] * len(lists)
        while any(lists):
            best: tuple[float, int] | None = None
            for group, tasks in enumerate(lists):
                if not tasks:
                    continue
                wait = waits[group]
                if wait is not None and wait not in self._ready:
                    continue
                needs = self._needs(tasks[0])
                waits[group] = missing = next((key for key in needs if key not in self._ready), None)
                if missing is None:
                    start = max([free_at[group], *(self._ready[key] for key in needs)])
                    best = min(best, (start, group)) if best else (start, group)
            if best is None:
                raise _stuck([tasks[0] for tasks in lists if tasks])
            start, group = best
            task = lists[group].popleft()
            free_at[group] = self._issue(task, group, start)
            waits[group] = None

    def _needs(self, task: Task) -> list[_Key]:
        m = -1 if task.microbatch is None else task.microbatch
        if task.kind == "send":
            return [self.key(t.source, m) for t in self._meant(task)]
        if task.kind == "recv":
            return [self.key(t.target, m) for t in self._meant(task)]
        needs: list[_Key] = []
        made: set[_Key] = set()
        for fragment in self._run_by(task):
            needs += [key for v in fragment.operands if (key := self._operand(v, m)) not in made]
            made |= {self.key(v, m) for v in fragment.results}
        return needs

    def _operand(self, value: int, microbatch: int) -> _Key:
        """As `key`; before the copy of a shared initial value is made, that value."""
        key = self.key(value, microbatch)
        if key not in self._ready and key[1] == 0 and key[0] in self._copied:
            return self.key(self._copied[key[0]], -1)
        return key

    def _run_by(self, task: Task) -> Iterator[Fragment]:
        """The fragments of a task: mostly one; a backward has the weight part with it that is not put off."""
        kinds = [task.kind]
        if task.kind == "backward" and task.stage not in self.schedule.split:
            kinds.append("weight")
        for kind in kinds:
            yield from self._fragments.get((kind, task.stage, task.level or 0), ())

    # --- actions ----------------------------------------------------------------------------------------------------

    def _issue(self, task: Task, group: int, start: float) -> float:
        """Appends the actions of a task and returns when its group would be free again."""
        m = -1 if task.microbatch is None else task.microbatch
        if task.kind == "send":
            for transfer in self._meant(task):
                self._copy(task, transfer, m, start)
            return start
        end = start + _UNITS.get(task.kind, 0.0)
        for fragment in self._run_by(task):
            for value in fragment.operands:
                self._take(task, group, self.key(value, m), start)
            operands = tuple(self.slots[self.key(value, m)] for value in fragment.operands)
            keys = [self.key(value, m) for value in fragment.results]
            self.actions.append(RunFragment(task, group, fragment.index, operands, tuple(map(self._slot, keys))))
            for key in keys:
                self._made(key, end, task)
        return end

    def _made(self, key: _Key, when: float, task: Task) -> None:
        self._ready[key] = when
        for transfer, microbatch in self._unsent.get(key, ()):
            self._copy(task, transfer, microbatch, when)

    def _copy(self, task: Task, transfer: Transfer, microbatch: int, start: float) -> None:
        source, target = self.key(transfer.source, microbatch), self.key(transfer.target, microbatch)
        group = self.program.values[transfer.source].group
        self.actions.append(MoveValue(task, group, transfer.index, self.slots[source], self._slot(target)))
        self._made(target, start, task)

    def _take(self, task: Task, group: int, key: _Key, start: float) -> None:
        """Makes the copy that a carry begins with, when it is first read."""
        if key in self._ready or key[0] not in self._copied:
            return
        source = self.slots[self.key(self._copied[key[0]], -1)]
        self.actions.append(MoveValue(task, group, -1, source, self._slot(key)))
        self._made(key, start, task)

    def _results(self) -> tuple[int, ...]:
        """The slots of the results; two that are one value get buffers of their own, so that both can be donated."""
        slots: list[int] = []
        for result in self.program.results:
            key = self.key(result.value, -1)
            if key not in self._ready:
                raise RhinoError(f"nothing in the schedule makes result {result.index}", "schedule the module again")
            slot = self._slot(key)
            if slot in slots:
                group = self.program.values[result.value].group
                twin = self._slot((key[0], -2 - len(slots)))
                self.actions.append(MoveValue(Task("apply", 0, level=0), group, -1, slot, twin))
                slot = twin
            slots.append(slot)
        return tuple(slots)


def _stuck(heads: Sequence[Task]) -> RhinoError:
    listed = "; ".join(str(task) for task in heads)
    return RhinoError(
        f"the schedule's lists wait for each other, or for what none of them makes: next are {listed}",
        "schedule the module again",
    )


def _with_lifetimes(program: PipelineProgram, merged: _Merger) -> Script:
    """Finds the last reader of every slot, and with it what each action leaves dead."""
    calls = {f.index for f in program.fragments} - {a.fragment for a in merged.actions if isinstance(a, RunFragment)}
    if calls:
        missing = program.fragments[min(calls)]
        raise RhinoError(
            f"the schedule never runs {missing.task} of stage {missing.stage}", "schedule the module again"
        )
    last: dict[int, int] = {}
    for index, action in enumerate(merged.actions):
        for slot in action.operands if isinstance(action, RunFragment) else (action.source,):
            last[slot] = index
    kept = set(merged.results) | {slot for slot, _, _ in merged.counters}
    given = {slot for a, slot in zip(program.arguments, merged.arguments, strict=True) if not a.donated}
    actions: list[Action] = []
    alive: dict[int, set[int]] = {}  # per fragment, operands that some call does not leave dead
    for index, action in enumerate(merged.actions):
        read = action.operands if isinstance(action, RunFragment) else (action.source,)
        dead = tuple(slot for slot in dict.fromkeys(read) if last[slot] == index and slot not in kept)
        if isinstance(action, MoveValue):
            actions.append(replace(action, dead=dead))
            continue
        unread = tuple(UNREAD if slot not in last and slot not in kept else slot for slot in action.results)
        actions.append(replace(action, dead=dead, results=unread))
        found = alive.setdefault(action.fragment, set())
        found |= {k for k, slot in enumerate(read) if slot not in dead or slot in given or read.count(slot) > 1}
    donated = tuple(
        tuple(k for k in range(len(fragment.operands)) if k not in alive[fragment.index])
        for fragment in program.fragments
    )
    return Script(
        slots=len(merged.values),
        arguments=tuple(merged.arguments),
        counters=tuple(merged.counters),
        actions=tuple(actions),
        results=merged.results,
        donated=donated,
        values=tuple(merged.values),
    )
