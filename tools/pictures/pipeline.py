"""What a planned pipeline says of itself, read from its module: programs, devices, seconds and task lists."""

from __future__ import annotations

from dataclasses import dataclass

from rhino.api.plan import Plan
from rhino.dialect.attributes import RhinoPlacement, RhinoSchedule
from rhino.dialect.context import make_context, parse_text
from rhino.ir.pipeline.priced import Units, read_priced
from rhino.ir.pipeline.program import read_program
from rhino.machine import Cluster
from rhino.pipeline.program import PipelineProgram
from rhino.pipeline.schedule import PipelineCosts, ScheduledStep


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A plan's pipeline: `devices` and seconds are by stage."""

    program: PipelineProgram
    devices: tuple[tuple[int, ...], ...]
    costs: PipelineCosts
    schedule: ScheduledStep

    @property
    def forward_s(self) -> tuple[float, ...]:
        """Seconds of a micro-batch's forward part."""
        return self.costs.forward_s

    @property
    def backward_s(self) -> tuple[float, ...]:
        """Seconds of a micro-batch's backward part."""
        return self.costs.backward_s


def read(plan: Plan) -> Pipeline:
    """The pipeline of a plan with stages, one group of devices for each."""
    module = parse_text(plan.module, make_context())
    program = read_program(module)
    placement, tasks = RhinoPlacement.of(module), RhinoSchedule.of(module)
    assert placement is not None and tasks is not None
    cluster = Cluster.load(plan.cluster)
    # What the plan says stands in the module; the units are for modules that do not say.
    costs = read_priced(module, program, cluster, Units(0.0, 0.0, 0.0)).costs()
    devices = tuple(tuple(placement[f"stage{stage}"]) for stage in range(plan.stages))
    return Pipeline(program, devices, costs, ScheduledStep.from_data(tasks))
