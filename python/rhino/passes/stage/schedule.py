"""The pass rhino-schedule: the task lists of a step in fragments."""

from __future__ import annotations

from typing import ClassVar

from jaxlib.mlir import ir

from rhino.dialect.attributes import RhinoSchedule
from rhino.errors import RhinoError
from rhino.ir.diagnostics import PassLog, errors_at
from rhino.ir.pipeline.priced import Units, read_priced
from rhino.ir.pipeline.program import read_program
from rhino.passes.entry import main_function, topology_cluster
from rhino.passes.registry import Pass, option, register
from rhino.pipeline.program import PipelineProgram
from rhino.pipeline.schedule import PipelineCosts, ScheduledStep, check, make_schedule


@register
class Schedule(Pass):
    """Order what every group of devices computes, sends and frees in a step: its task list.

    Seconds of a fragment are those of its `rhino.cost`; without one, the roofline's if a topology is given; else every
    stage takes the same. Transfers take what their `rhino.multicast` says, what the cluster's links need, or the option
    `transfer`. The lists are proved complete, in an order that respects what depends on what, free of deadlock and
    within the memory.

    Requires: @main in fragments, as rhino-form-fragments leaves it. Schedules that delay weight gradients need its
    option split-backward; fragments formed with it are always scheduled so.

    Ensures: the module has `rhino.schedule`; nothing else changes.

    Options:
      schedule: which schedule.
      k: micro-batches that go together; of kfkb.
      weight-delay: insist that weight gradients are computed after the others have been sent.
      topology: the cluster, for seconds of what has no rhino.cost and of transfers; by default that of the run, if any.
      memory-limit: bytes per device; 0 for no limit.
      forward, backward, transfer: seconds of a stage and of a transfer, where nothing else says.

    Example:
      ```mlir
      // rhino-opt --rhino-schedule=schedule=1f1b
      module attributes {rhino.schedule = {schedule = "1f1b", stages = 2 : i64, microbatches = 4 : i64, tasks = [[
        {task = "forward", stage = 0 : i64, microbatch = 0 : i64},
        {task = "send", stage = 0 : i64, microbatch = 0 : i64, peer = 1 : i64, of = "forward"}, ...
      ```
    """

    name: ClassVar[str] = "rhino-schedule"

    schedule: str = option(
        "1f1b", "which schedule", ("gpipe", "1f1b", "kfkb", "eager-1f1b", "interleaved-1f1b", "zero-bubble")
    )
    k: int = option(0, "micro-batches that go together, of kfkb; 0 takes the fastest that fits")
    weight_delay: bool = option(False, "insist that weight gradients are computed after the others have been sent")
    topology: str = option("", "cluster: preset[:hosts], a YAML file, or `local`")
    memory_limit: int = option(0, "bytes per device; 0 for no limit")
    forward: float = option(1.0, "seconds of a stage's forward part, where nothing else says")
    backward: float = option(2.0, "seconds of a stage's whole backward part, where nothing else says")
    transfer: float = option(0.0, "seconds of a transfer, where nothing else says")

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Write `rhino.schedule`. Raises PassError at @main when there is no such schedule."""
        main = main_function(module, self.name)
        program = read_program(module)
        with errors_at(main):
            cluster = topology_cluster(self.topology, log, self.name) if self.topology else log.session.cluster
            units = Units(self.forward, self.backward, self.transfer)
            made = self._made(program, read_priced(module, program, cluster, units).costs(self.memory_limit))
        RhinoSchedule.attach(module, made.to_data())
        log.count("tasks", sum(map(len, made.tasks)))
        log.count("transfers", sum(task.kind == "send" for tasks in made.tasks for task in tasks))

    def _made(self, program: PipelineProgram, costs: PipelineCosts) -> ScheduledStep:
        """The task lists. Fragments whose backward is split are scheduled so under any name."""
        split = any(fragment.kind == "weight" for fragment in program.fragments)
        delayed = self.weight_delay or self.schedule == "zero-bubble"
        if delayed and not split and any(f.kind == "backward" for f in program.fragments) and program.stages > 1:
            raise RhinoError(
                f"'{self.schedule}' delays weight gradients, but no backward fragment is split",
                "form fragments with split-backward; if they are, no stage has anything to delay",
            )
        late = (delayed or split) or None
        made = make_schedule(self.schedule, costs, program.microbatches, k=self.k or None, delay_weight=late)
        problems = check(made, costs)
        if problems:
            raise RhinoError(f"the schedule is not valid: {problems[0]}", "this is a bug in rhino-schedule")
        return made
