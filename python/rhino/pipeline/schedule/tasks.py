"""A schedule as plain data: per device group the ordered list of its tasks, to and from the attribute `rhino.schedule`.

Owns what a task is and its data form. Knows neither how schedules are made nor what tasks cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rhino.errors import RhinoError

COMPUTE = ("prepare", "forward", "backward", "weight", "apply")  # what occupies a group's devices
KINDS = (*COMPUTE, "send", "recv", "accumulate", "free")
_FIELDS = ("stage", "microbatch", "peer", "of", "level")


@dataclass(frozen=True, slots=True)
class Task:
    """One thing a device group does.

    Attributes:
      kind: one of KINDS. `free` ends the stage's saved activations of the micro-batch.
      stage: the logical stage it belongs to; of a recv, the stage that receives.
      microbatch: None for prepare and apply, and for sends and recvs of what is made once per step.
      peer: the other stage, of send and recv only.
      of: which kind of task made the value that is sent or received. With "forward" it is everything that goes from a
        stage to a later one within a micro-batch, with "backward" everything that goes to an earlier one. Without a
        micro-batch, it is what the loop over micro-batches leaves: sums, or stacked outputs.
      level: of prepare and apply, and of what these send: 0, 1, ...; a level uses what other stages made at lower ones.
    """

    kind: str
    stage: int
    microbatch: int | None = None
    peer: int | None = None
    of: str | None = None
    level: int | None = None

    def to_data(self) -> dict[str, Any]:
        """The task as one element of `rhino.schedule.tasks`; what is None is left out."""
        data: dict[str, Any] = {"task": self.kind}
        for key in _FIELDS:
            value = getattr(self, key)
            if value is not None:
                data[key] = value
        return data

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Task:
        """The task that `to_data` wrote."""
        return cls(
            data["task"], data["stage"], data.get("microbatch"), data.get("peer"), data.get("of"), data.get("level")
        )

    def __str__(self) -> str:
        where = f"{self.kind} of stage {self.stage}"
        if self.peer is not None:
            way = "to" if self.kind == "send" else "from"
            where = f"{self.kind} on stage {self.stage} {way} stage {self.peer} of its {self.of} value"
        if self.level is not None:
            where += f", level {self.level}"
        return where if self.microbatch is None else f"{where}, micro-batch {self.microbatch}"


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """The task lists of one step.

    Attributes:
      name: the schedule that made the lists.
      stages: number of logical stages.
      microbatches: number of micro-batches.
      tasks: one list per device group, in execution order. Sends are asynchronous; a recv blocks the tasks after it.
      warmup: per stage, forwards before its first backward; () when not recorded.
      split: the stages whose backward is split: `backward` computes what is sent, `weight` the rest. A stage that is
        not listed computes all of it in `backward`.
    """

    name: str
    stages: int
    microbatches: int
    tasks: tuple[tuple[Task, ...], ...]
    warmup: tuple[int, ...] = ()
    split: tuple[int, ...] = ()

    def to_data(self) -> dict[str, Any]:
        """The data of the attribute `rhino.schedule`."""
        data: dict[str, Any] = {
            "schedule": self.name,
            "stages": self.stages,
            "microbatches": self.microbatches,
            "tasks": [[task.to_data() for task in tasks] for tasks in self.tasks],
        }
        if self.warmup:
            data["warmup"] = list(self.warmup)
        if self.split:
            data["split"] = list(self.split)
        return data

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> ScheduledStep:
        """The schedule that `to_data` wrote. RhinoError when a key is missing."""
        try:
            return cls(
                data["schedule"],
                data["stages"],
                data["microbatches"],
                tuple(tuple(Task.from_data(task) for task in tasks) for tasks in data["tasks"]),
                tuple(data.get("warmup", ())),
                tuple(data.get("split", ())),
            )
        except KeyError as error:
            raise RhinoError(f"rhino.schedule has no key {error}", "verify the module with rhino-verify") from None
