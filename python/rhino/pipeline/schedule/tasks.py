"""A schedule as plain data: per device group the ordered list of its tasks, as the attribute `rhino.schedule` has it.

Owns what a task is and its data form. Knows neither how schedules are made nor what tasks cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rhino.schema.kinds import Fault, Faults, Int, ListOf, String
from rhino.schema.records import described, record, told, write

SCHEDULES = ("gpipe", "1f1b", "kfkb", "eager-1f1b", "interleaved-1f1b", "zero-bubble")
ONE_STAGE_PER_GROUP = SCHEDULES[:4]
IN_LOOP = ("forward", "backward", "weight")  # once per micro-batch, in this order
COMPUTE = ("prepare", *IN_LOOP, "apply")  # what occupies a group's devices
KINDS = (*COMPUTE, "send", "recv", "accumulate", "free")


@described
class Task:
    """One thing a device group does. `free` ends the stage's saved activations of the micro-batch."""

    kind: str = told(String(KINDS), "the kind of task", key="task")
    stage: int = told(Int(0), "the stage it belongs to; of a recv, the stage that receives")
    microbatch: int | None = told(
        Int(0),
        "its micro-batch; missing of prepare and apply, and of sends and recvs of what is made once per step",
        default=None,
    )
    peer: int | None = told(Int(0), "the other stage of a send or recv", default=None)
    # With "forward" it is everything that goes from a stage to a later one within a micro-batch, with "backward" all
    # that goes to an earlier one. Without a micro-batch, it is what the loop leaves: sums, or stacked outputs.
    of: str | None = told(String(COMPUTE), "the kind of task that made what is sent", default=None)
    # A level uses what other stages made at lower ones.
    level: int | None = told(Int(0), "the level of prepare or apply, and of what these send", default=None)

    def to_data(self) -> dict[str, Any]:
        """The task as one element of `rhino.schedule.tasks`; what is None is left out."""
        return dict(write(self))

    def __str__(self) -> str:
        where = f"{self.kind} of stage {self.stage}"
        if self.peer is not None:
            way = "to" if self.kind == "send" else "from"
            where = f"{self.kind} on stage {self.stage} {way} stage {self.peer} of its {self.of} value"
        if self.level is not None:
            where += f", level {self.level}"
        return where if self.microbatch is None else f"{where}, micro-batch {self.microbatch}"


@described
class ScheduledStep:
    """The task lists of one step. Sends are asynchronous; a recv blocks the tasks after it.

    A stage that is not in `split` computes all of its backward in `backward`; else that is what is sent, and the rest
    is `weight`.
    """

    name: str = told(String(("none", *SCHEDULES)), "the schedule that made the lists", key="schedule")
    stages: int = told(Int(1), "the number of stages")
    microbatches: int = told(Int(1), "the number of micro-batches")
    tasks: tuple[tuple[Task, ...], ...] = told(
        ListOf(ListOf(record(Task))), "one list per device group, in execution order"
    )
    warmup: tuple[int, ...] = told(
        ListOf(Int(0)), "per stage, forwards before its first backward", when="warmup", default=()
    )
    split: tuple[int, ...] = told(
        ListOf(Int(0)), "the stages whose weight gradients are tasks of their own", when="split", default=()
    )

    def to_data(self) -> dict[str, Any]:
        """The data of the attribute `rhino.schedule`."""
        return dict(write(self))

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> ScheduledStep:
        """The schedule that `to_data` wrote, of data that has the schema."""
        step: ScheduledStep = STEP.read(data)
        return step


def _faults(data: Mapping[str, Any]) -> Faults:
    counts = {"stage": "stages", "peer": "stages", "microbatch": "microbatches"}
    for group, tasks in enumerate(data["tasks"]):
        for i, task in enumerate(tasks):
            at = ("tasks", group, i)
            for key, counted in counts.items():
                if task.get(key, 0) >= data[counted]:
                    yield Fault((*at, key), f"is {task[key]}, but there are {data[counted]} {counted}")
            if (task["task"] in ("send", "recv")) != ("peer" in task):
                yield Fault(at, f"has {'a' if 'peer' in task else 'no'} peer, which send and recv, and only they, have")
            elif "of" in task and "peer" not in task:
                yield Fault(at, "says what its value is of, as only send and recv do")
            if "level" in task and task.get("of", task["task"]) not in ("prepare", "apply"):
                yield Fault(at, "has a level, as only prepare and apply, and what they send, do")
    if "warmup" in data and len(data["warmup"]) != data["stages"]:
        yield Fault(("warmup",), f"has {len(data['warmup'])} values, but there are {data['stages']} stages")
    for stage in data.get("split", ()):
        if stage >= data["stages"]:
            yield Fault(("split",), f"lists stage {stage}, but there are {data['stages']} stages")


STEP = record(ScheduledStep, rules=_faults)
