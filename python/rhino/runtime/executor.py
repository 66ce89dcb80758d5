"""A compiled pipeline: runs one step by going through its script, and says what it needs and sends.

Owns the loop over the actions, and measuring them one by one. Knows neither MLIR nor how schedules are made.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import jax
import numpy as np

from rhino.compile._jax import numpy_dtype
from rhino.compile.collectives import Collective
from rhino.compile.target import DEVICELESS
from rhino.errors import RhinoError, first_line
from rhino.ir.pipeline.messages import EdgeMessages
from rhino.pipeline.program import PipelineProgram
from rhino.pipeline.schedule import ScheduledStep
from rhino.runtime.arrays import put as put_array
from rhino.runtime.boundaries import boundaries
from rhino.runtime.compile import CompiledPipeline
from rhino.runtime.crossing import Crossing
from rhino.runtime.lanes import Batch, batches
from rhino.runtime.measuring import copied, gathered, waited
from rhino.runtime.memory import PipelineMemory, pipeline_memory
from rhino.runtime.moves import mover
from rhino.runtime.places import CallerArgument, inputs, outputs, slot_shardings
from rhino.runtime.profile import Profile
from rhino.runtime.script import UNREAD, Action, RunFragment, Script

_WIDE = ("f64", "i64", "ui64", "complex<f64>")
_Table = list[Any]
_Operation = Callable[[_Table], Any]  # returns what it made


class PipelineExecutable:
    """One step of a pipeline, compiled for the devices of its groups.

    One thread dispatches everything, in one order that suits all groups' lists; devices compute and copy on their own
    and each runs its tasks in list order. Where groups are on several processes, each of these goes through the same
    list and does what its own devices have a part in; all must run the same steps, and get handles of what others have.
    What goes between processes is sent by threads of its own (`rhino.runtime.lanes`).

    Attributes:
      program, schedule, script: what runs, when, and both as one list of actions.
      compiled: the fragments' executables.
      target: "cpu", "cuda" or the name of a deviceless GPU.

    Args:
      put: how an array gets to the same pieces on other devices of a process; must not wait for either.
      messages: by name of the edge, what is sent between processes (`rhino.runtime.here`).

    Raises:
      RhinoError: processes do not compile the same pipeline at the same time.
    """

    def __init__(
        self,
        program: PipelineProgram,
        schedule: ScheduledStep,
        script: Script,
        compiled: CompiledPipeline,
        target: str,
        put: Callable[[Any, Any], Any] = jax.device_put,
        *,
        messages: Mapping[str, EdgeMessages] | None = None,
    ) -> None:
        self.program = program
        self.schedule = schedule
        self.script = script
        self.compiled = compiled
        self.target = target
        self._put = put
        self._operations: list[_Operation] = []
        if target in DEVICELESS:
            return
        self._shardings = slot_shardings(program, script, boundaries(compiled), compiled.devices)
        self._inputs = inputs(program, script, self._shardings)
        self._outputs = outputs(program, script, self._shardings)
        self._wide = any(value.dtype in _WIDE for value in program.values)
        with self._types():
            self._crossing = Crossing(program, script, self._shardings, compiled.devices, messages or {}, self._types)
            found = list(batches(program, script, self._crossing.is_remote))
            self._crossing.connect(found)
        empty: _Table = [None] * script.slots
        for slot, group, microbatch in script.counters:
            if self._crossing.concerns(group):
                empty[slot] = put_array(np.uint32(microbatch), self._shardings[slot])
        self._empty = empty
        self._actions = [action for action in found if self._concerns(action)]
        with self._types():
            self._operations = [self._operation(action) for action in self._actions]

    def __repr__(self) -> str:
        groups, fragments = len(self.program.meshes), len(self.compiled.executables)
        return (
            f"PipelineExecutable(target={self.target!r}, stages={self.program.stages}, "
            f"microbatches={self.program.microbatches}, groups={groups}, fragments={fragments})"
        )

    @property
    def seconds(self) -> float:
        """Wall time of compiling."""
        return self.compiled.seconds

    @property
    def devices(self) -> int:
        """Number of devices of all groups."""
        return sum(len(group) for group in self.compiled.devices)

    @property
    def places(self) -> Sequence[CallerArgument]:
        """Where the flat arguments are kept, in their order; empty for a target that is not here."""
        return () if self.target in DEVICELESS else self._inputs

    # --- running ----------------------------------------------------------------------------------------------------

    def place(self, arguments: Sequence[Any]) -> list[Any]:
        """The step's flat arguments on the devices that own them: a `jax.Array` each, or a `StagedArray`.

        An argument that several groups read is placed on the first of them; each step copies it to the others.

        Raises:
          RhinoError: their number, a shape or a dtype is another one.
        """
        self._check(arguments)
        with self._types():
            return [place.place(leaf) for place, leaf in zip(self._inputs, arguments, strict=True)]

    def run(self, arguments: Sequence[Any]) -> list[Any]:
        """One step on flat arguments, to flat results; donated arguments are consumed. Does not wait for the devices.

        Raises:
          RhinoError: an argument is deleted or of another shape, or a fragment fails.
        """
        self._check(arguments)
        table = self._empty.copy()
        with self._types():
            self._load(arguments, table)
            position = 0
            try:
                for position, operation in enumerate(self._operations):  # noqa: B007 - the error says where
                    operation(table)
                self._crossing.tell(table)
            except (jax.errors.JaxRuntimeError, RuntimeError, ValueError, TypeError) as error:
                raise self._failed(self._actions[position], error) from error
            return [output.take(table) for output in self._outputs]

    def _load(self, arguments: Sequence[Any], table: _Table) -> None:
        for place, leaf in zip(self._inputs, arguments, strict=True):
            place.load(leaf, table, self._crossing.crossings, self._crossing.send_argument)

    def __call__(self, *arguments: Any) -> list[Any]:
        """As `run`."""
        return self.run(arguments)

    def profile(self, arguments: Sequence[Any], repeats: int = 3) -> Profile:
        """Measures each task by itself: the steps run as ever, but each task is waited for.

        The arguments are copied first, and not consumed.

        Raises:
          RhinoError: as `run`; the message names the task that really failed, since nothing else runs beside it.
        """
        self._check(arguments)
        timed: list[list[float]] = [[] for _ in self._actions]
        with self._types(), self._crossing.lanes.watched() as sent:
            for _ in range(repeats + 1):  # the first one warms up
                table = self._empty.copy()
                self._load(arguments, table)
                # A step may consume what it is given.
                for slot in dict.fromkeys(self.script.arguments):
                    table[slot] = copied(table[slot])
                waited(table)
                sent()
                for action, operation, seconds in zip(self._actions, self._operations, timed, strict=True):
                    start = time.perf_counter()
                    try:
                        waited(operation(table))
                        sent()
                    except (jax.errors.JaxRuntimeError, RuntimeError, ValueError, TypeError) as error:
                        raise self._failed(action, error) from error
                    seconds.append(time.perf_counter() - start)
        measured = [seconds[1:] for seconds in timed]
        return gathered(self.program, self.script.actions, self._actions, measured, self._crossing.is_alone)

    def _check(self, arguments: Sequence[Any]) -> None:
        if self.target in DEVICELESS:
            raise RhinoError(
                f"this pipeline was compiled for {self.target} without a device and cannot run",
                "build it for the devices that are here to run it",
            )
        if len(arguments) != len(self._inputs):
            raise RhinoError(
                f"the step takes {len(self._inputs)} arguments, and {len(arguments)} were given",
                "give those that it was planned for",
            )

    def _types(self) -> contextlib.AbstractContextManager[Any]:
        """Without this, jax narrows what has 64 bits."""
        return jax.enable_x64(True) if self._wide else contextlib.nullcontext()

    def _failed(self, action: Action | Batch, error: BaseException) -> RhinoError:
        if isinstance(action, RunFragment):
            fragment = self.program.fragments[action.fragment]
            where = f"{fragment.task} of stage {fragment.stage}"
        else:
            where = str(action.task)
        if action.task.microbatch is not None and isinstance(action, RunFragment):
            where += f", micro-batch {action.task.microbatch}"
        return RhinoError(
            f"the step failed in {where}: {first_line(error)}",
            "donated arguments may be lost; `profile` runs one task at a time, should an earlier one be the cause",
        )

    # --- one action -------------------------------------------------------------------------------------------------

    def _concerns(self, action: Action | Batch) -> bool:
        if isinstance(action, Batch):
            return self._crossing.concerns(action.source, action.target)
        return self._crossing.concerns(action.group)

    def _operation(self, action: Action | Batch) -> _Operation:
        if isinstance(action, Batch):
            return self._send(action)
        if not isinstance(action, RunFragment):
            return self._copy(action.transfer < 0, action.source, action.target, action.dead)
        executable = self.compiled.executables[action.fragment]
        assert executable is not None
        run = executable.compiled
        read = _reader(action.operands)
        dead = action.dead
        kept = tuple((k, slot) for k, slot in enumerate(action.results) if slot != UNREAD)

        def call(table: _Table) -> Any:
            made = run(*read(table))
            for slot in dead:
                table[slot] = None
            for k, slot in kept:
                table[slot] = made[k]
            return made

        return call

    def _send(self, batch: Batch) -> _Operation:
        dead = batch.dead

        def send(table: _Table) -> Any:
            arrived = self._crossing.send(batch, table)
            for slot in dead:
                table[slot] = None
            return arrived

        return send

    def _copy(self, twin: bool, source: int, target: int, dead: Sequence[int]) -> _Operation:
        value = self.program.values[self.script.values[source]]
        aval = jax.ShapeDtypeStruct(value.shape, numpy_dtype(value.dtype))
        move = mover(self._shardings[source], self._shardings[target], aval, self._put)

        def copy(table: _Table) -> Any:
            array = table[source]
            made = table[target] = array.copy() if twin else move(array)
            for slot in dead:
                table[slot] = None
            return made

        return copy

    # --- what it needs ----------------------------------------------------------------------------------------------

    def memory_analysis(self) -> PipelineMemory:
        """Bytes per device of each group: the step's own accounting, with XLA's numbers for each fragment.

        Of groups that are on other processes only, what runs is not counted.
        """
        stats = [executable.memory_analysis() if executable else None for executable in self.compiled.executables]
        return pipeline_memory(self.program, self.script, stats)

    def collectives(self) -> tuple[tuple[Collective, ...], ...]:
        """Per group of this process, what one device of it sends to others of the group in one step."""
        found: list[dict[Any, Collective]] = [{} for _ in self.program.meshes]
        for fragment in self.program.fragments:
            calls = sum(isinstance(a, RunFragment) and a.fragment == fragment.index for a in self.script.actions)
            executable = self.compiled.executables[fragment.index]
            for one in executable.collectives() if executable else ():
                key = (one.kind, one.groups, one.dtype, one.in_unknown_loop)
                sums = found[fragment.group].get(key)
                count, sent = (sums.count, sums.bytes) if sums else (0, 0)
                found[fragment.group][key] = dataclasses.replace(
                    one, count=count + calls * one.count, bytes=sent + calls * one.bytes
                )
        return tuple(tuple(rows.values()) for rows in found)

    def transfers(self) -> dict[tuple[int, int], int]:
        """Bytes that go from group to group in one step, all devices together."""
        found: dict[tuple[int, int], int] = {}
        for action in self.script.actions:
            if not isinstance(action, RunFragment) and action.transfer >= 0:
                value = self.program.values[self.script.values[action.target]]
                key = (action.group, value.group)
                found[key] = found.get(key, 0) + value.nbytes
        return found


def _reader(slots: tuple[int, ...]) -> Callable[[_Table], tuple[Any, ...]]:
    """The operands out of the table, in C."""
    if len(slots) > 1:
        return itemgetter(*slots)
    return lambda table: tuple(table[slot] for slot in slots)
