"""`rhino-plan-stages`: asks the stage planner where every op of a micro-batched step runs, and writes it down."""

from __future__ import annotations

from typing import ClassVar

from jaxlib.mlir import ir

from rhino.errors import RhinoError
from rhino.ir.diagnostics import PassLog, errors_at
from rhino.ir.import_graph import import_graph
from rhino.ir.pipeline.stages import write_stages
from rhino.machine.roofline import device_traffic, launch_seconds, op_seconds
from rhino.passes.entry import main_function, topology_cluster
from rhino.passes.registry import Pass, option, register
from rhino.pipeline.cut import StageOptions, plan_step
from rhino.pipeline.search.placement import Placement


@register
class PlanStages(Pass):
    """Cut the micro-batch loop into pipeline stages, forward and mirrored backward, and place the rest of the step.

    No order of layers is assumed: towers, skips and branches that rejoin are cut where it is best, by trying every cut
    of the graph where it has few, else by an integer program. The objective is the time of the step: the slowest stage
    once for each further micro-batch, all stages once, and all that is sent between them.

    Requires:
      `rhino-split-microbatch` made the loop (count=1 will do) and `rhino-classify-args` the roles of the arguments.

    Ensures:
      Every op of @main and of the loop's body has `rhino.stage`, but for those that are cloned where they are needed:
      constants and what follows from them and the counter, scalars of arguments, views of the batch, scalars spread to
      a tensor. Forward edges go to the same or a later stage, backward edges to the same or an earlier one. A
      parameter, its gradient and its optimizer state have one stage. Gradients with parts from several stages are
      accumulated by each on its own and added after the loop; scalars that combine all stages are first combined by
      stage.

    Options:
      stages: how many.
      topology: the cluster; its devices are dealt to the stages as evenly as parts of hosts and whole hosts allow, the
        first stages getting more.
      schedule: decides how many micro-batches' activations a stage keeps.
      memory-limit, balance, exposure: what a stage may hold and take.

    Example:
      ```mlir
      // rhino-opt --rhino-plan-stages='stages=2 topology=dgx-h100:1'
      %4 = stablehlo.dot_general %x, %w1, contracting_dims = [1] x [0]
      %5 = stablehlo.dot_general %4, %w2, contracting_dims = [1] x [0]
      // becomes
      %4 = stablehlo.dot_general %x, %w1, .. {rhino.stage = {phase = "forward", stage = 0 : i64}}
      %5 = stablehlo.dot_general %4, %w2, .. {rhino.stage = {phase = "forward", stage = 1 : i64}}
      ```
    """

    name: ClassVar[str] = "rhino-plan-stages"

    stages: int = option(0, "number of stages")
    topology: str = option("", "cluster: preset[:hosts], a YAML file, or `local`")
    schedule: str = option("1f1b", "the schedule memory is counted for", ("gpipe", "1f1b", "eager-1f1b"))
    memory_limit: int = option(0, "bytes per device; 0 means nine tenths of the device's memory")
    balance: float = option(0.0, "how much longer than the mean the slowest stage may take, as in 0.2; 0 for any")
    exposure: float = option(0.0, "share of a stage's incoming transfers that is not hidden behind its computing")

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Plan and annotate. Raises PassError at @main where no stages are possible, RhinoError for a bad option."""
        if self.stages < 1:
            raise RhinoError(f"stages is {self.stages}, not a positive number", "give stages=2 or more")
        for name in ("memory_limit", "balance", "exposure"):
            if getattr(self, name) < 0:
                raise RhinoError(f"{name.replace('_', '-')} {getattr(self, name)} is negative", "give 0 or more")
        cluster = topology_cluster(self.topology, log, self.name)
        main = main_function(module, self.name)
        graph = import_graph(module)
        # No device of a stage launches less than all of it.
        width = cluster.num_devices / self.stages
        placement = Placement.of(cluster, self.stages)
        moved = device_traffic(graph, cluster)
        launched = [width * seconds for seconds in launch_seconds(graph, cluster, moved)]
        with errors_at(main):
            plan = plan_step(
                graph,
                [work + start for work, start in zip(op_seconds(graph, cluster, moved), launched, strict=True)],
                placement.machine(graph.microbatches, self.schedule, self.memory_limit),
                StageOptions(exposure=self.exposure, balance=self.balance),
            )
        write_stages(module, graph, plan)
        log.count("stages", plan.stages)
        log.count("units", plan.units)
        log.count("transfers", len(plan.transfers))
        log.count("split-gradients", len(plan.sums))
        log.count("proved-optimal", int(plan.solution.status == "optimal"))
