"""A compiled pipeline: runs one step by going through its script, and says what it needs and sends.

Owns the loop over the actions, and measuring them one by one. Knows neither MLIR nor how schedules are made.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import jax
import numpy as np

from rhino.compile._jax import first_line
from rhino.compile.collectives import Collective
from rhino.compile.target import DEVICELESS
from rhino.errors import RhinoError
from rhino.pipeline import PipelineProgram
from rhino.runtime.compile import Compiled
from rhino.runtime.memory import PipelineMemory, pipeline_memory
from rhino.runtime.moves import mover
from rhino.runtime.places import Input, inputs, outputs, slot_shardings
from rhino.runtime.profile import Profile, Timed
from rhino.runtime.script import UNREAD, Action, Call, Script
from rhino.schedule import Schedule

_WIDE = ("f64", "i64", "ui64", "complex<f64>")
_Table = list[Any]
_Operation = Callable[[_Table], Any]  # returns what it made


class PipelineExecutable:
    """One step of a pipeline, compiled for the devices of its groups.

    One thread dispatches everything, in one order that suits all groups' lists; devices compute and copy on their own
    and each runs its tasks in list order.

    Attributes:
      program, schedule, script: what runs, when, and both as one list of actions.
      compiled: the fragments' executables.
      target: "cpu", "cuda" or the name of a deviceless GPU.

    Args:
      put: how an array gets to the same pieces on other devices; must not wait for either.
    """

    def __init__(
        self,
        program: PipelineProgram,
        schedule: Schedule,
        script: Script,
        compiled: Compiled,
        target: str,
        put: Callable[[Any, Any], Any] = jax.device_put,
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
        self._shardings = slot_shardings(program, script, compiled)
        self._inputs = inputs(program, script, self._shardings)
        self._outputs = outputs(program, script, self._shardings)
        self._wide = any(value.dtype in _WIDE for value in program.values)
        empty: _Table = [None] * script.slots
        for slot, _, microbatch in script.counters:
            empty[slot] = jax.device_put(np.uint32(microbatch), self._shardings[slot])
        self._empty = empty
        self._operations = [self._operation(action) for action in script.actions]

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
    def places(self) -> Sequence[Input]:
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
            for place, leaf in zip(self._inputs, arguments, strict=True):
                place.load(leaf, table)
            position = 0
            try:
                for position, operation in enumerate(self._operations):  # noqa: B007 - the error says where
                    operation(table)
            except (jax.errors.JaxRuntimeError, RuntimeError, ValueError, TypeError) as error:
                raise self._failed(self.script.actions[position], error) from error
        return [output.take(table) for output in self._outputs]

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
        timed: list[list[float]] = [[] for _ in self.script.actions]
        with self._types():
            for _ in range(repeats + 1):  # the first one warms up
                table = self._empty.copy()
                for place, leaf in zip(self._inputs, arguments, strict=True):
                    place.load(leaf, table)
                # A step may consume what it is given.
                for slot in dict.fromkeys(self.script.arguments):
                    table[slot] = table[slot].copy()
                jax.block_until_ready(table)
                for action, operation, seconds in zip(self.script.actions, self._operations, timed, strict=True):
                    start = time.perf_counter()
                    try:
                        jax.block_until_ready(operation(table))
                    except (jax.errors.JaxRuntimeError, RuntimeError, ValueError, TypeError) as error:
                        raise self._failed(action, error) from error
                    seconds.append(time.perf_counter() - start)
        pairs = zip(self.script.actions, timed, strict=True)
        return Profile(self.program, tuple(Timed(action, tuple(seconds[1:])) for action, seconds in pairs))

    def _check(self, arguments: Sequence[Any]) -> None:
        if self.target in DEVICELESS:
            raise RhinoError(
                f"this pipeline was compiled for {self.target} without a device and cannot run",
                "build it for the devices that are here to run it",
            )
        if len(arguments) != len(self._inputs):
            raise RhinoError(f"the step takes {len(self._inputs)} arguments, and {len(arguments)} were given")

    def _types(self) -> contextlib.AbstractContextManager[Any]:
        """Without this, jax narrows what has 64 bits."""
        return jax.enable_x64(True) if self._wide else contextlib.nullcontext()

    def _failed(self, action: Action, error: BaseException) -> RhinoError:
        if isinstance(action, Call):
            fragment = self.program.fragments[action.fragment]
            where = f"{fragment.task} of stage {fragment.stage}"
        else:
            where = str(action.task)
        if action.task.microbatch is not None and isinstance(action, Call):
            where += f", micro-batch {action.task.microbatch}"
        return RhinoError(
            f"the step failed in {where}: {first_line(error)}",
            "donated arguments may be lost; `profile` runs one task at a time, should an earlier one be the cause",
        )

    # --- one action -------------------------------------------------------------------------------------------------

    def _operation(self, action: Action) -> _Operation:
        if not isinstance(action, Call):
            return self._copy(action.transfer < 0, action.source, action.target, action.dead)
        run = self.compiled.executables[action.fragment].compiled
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

    def _copy(self, twin: bool, source: int, target: int, dead: Sequence[int]) -> _Operation:
        here, there = (self.program.values[self.script.values[slot]] for slot in (source, target))
        move = mover(
            self._shardings[source], self._shardings[target], here.shape,
            self.compiled.devices[here.group], self.compiled.devices[there.group], self._put,
        )  # fmt: skip

        def copy(table: _Table) -> Any:
            array = table[source]
            made = table[target] = array.copy() if twin else move(array)
            for slot in dead:
                table[slot] = None
            return made

        return copy

    # --- what it needs ----------------------------------------------------------------------------------------------

    def memory_analysis(self) -> PipelineMemory:
        """Bytes per device of each group: the step's own accounting, with XLA's numbers for each fragment."""
        stats = [executable.memory_analysis() for executable in self.compiled.executables]
        return pipeline_memory(self.program, self.script, stats)

    def collectives(self) -> tuple[tuple[Collective, ...], ...]:
        """Per group, what one device of it sends to others of the group in one step."""
        found: list[dict[Any, Collective]] = [{} for _ in self.program.meshes]
        for fragment in self.program.fragments:
            calls = sum(isinstance(a, Call) and a.fragment == fragment.index for a in self.script.actions)
            for one in self.compiled.executables[fragment.index].collectives():
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
            if not isinstance(action, Call) and action.transfer >= 0:
                value = self.program.values[self.script.values[action.target]]
                key = (action.group, value.group)
                found[key] = found.get(key, 0) + value.nbytes
        return found


def _reader(slots: tuple[int, ...]) -> Callable[[_Table], tuple[Any, ...]]:
    """The operands out of the table, in C."""
    if len(slots) > 1:
        return itemgetter(*slots)
    return lambda table: tuple(table[slot] for slot in slots)
