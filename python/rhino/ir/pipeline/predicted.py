"""What a module in fragments is predicted to take: its task lists played with its own seconds, transfers and bytes.

Owns this prediction. The search's answer and rhino-estimate make it here.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir

from rhino.dialect.attributes import RhinoSchedule
from rhino.errors import RhinoError
from rhino.ir.pipeline.priced import read_priced
from rhino.ir.pipeline.program import read_program
from rhino.machine import Cluster
from rhino.pipeline.program import PipelineProgram
from rhino.pipeline.schedule import PipelineCosts, ScheduledStep, Simulation, check, simulate


@dataclass(frozen=True, slots=True)
class PredictedPipeline:
    """A module's pipeline and what happens in one step of it."""

    program: PipelineProgram
    costs: PipelineCosts
    schedule: ScheduledStep
    simulation: Simulation

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """Peak memory of a device, by group."""
        return self.simulation.memory_peak_bytes


def predict_pipeline(module: ir.Module, cluster: Cluster) -> PredictedPipeline:
    """The prediction for a module with task lists.

    Raises:
      PassError: @main is not in fragments.
      RhinoError: it has no task lists, or they are not those of its fragments; the cluster has fewer devices.
    """
    program = read_program(module)
    most = max(device for mesh in program.meshes for device in mesh.devices)
    if most >= cluster.num_devices:
        raise RhinoError(
            f"rhino.placement has device {most}, but cluster {cluster.name} has {cluster.num_devices} devices",
            "estimate for the cluster that it was planned for",
        )
    given = RhinoSchedule.of(module)
    if given is None:
        raise RhinoError("the module is in fragments and has no rhino.schedule", "run rhino-schedule first")
    costs = read_priced(module, program, cluster).costs()
    schedule = ScheduledStep.from_data(given)
    if schedule.microbatches != program.microbatches:
        raise RhinoError(
            f"rhino.schedule has {schedule.microbatches} micro-batches, but the loop has {program.microbatches}",
            "run rhino-schedule again",
        )
    problems = check(schedule, costs)
    if problems:
        raise RhinoError(f"rhino.schedule is not one of these fragments: {problems[0]}", "run rhino-schedule again")
    return PredictedPipeline(program, costs, schedule, simulate(schedule, costs))
