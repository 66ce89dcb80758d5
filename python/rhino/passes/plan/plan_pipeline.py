"""`rhino-plan-pipeline`: asks the joint search for a pipeline, and turns the step into its fragments and task lists."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import inf
from typing import ClassVar

from jaxlib.mlir import ir

from rhino.deadline import NEVER, Deadline
from rhino.dialect import sdy
from rhino.errors import NotFaster, NotPipelined, RhinoError
from rhino.ir.diagnostics import PassError, PassLog
from rhino.ir.manual import MANUAL_MESH
from rhino.ir.meshes import MESH, REPLICA_AXIS, given_mesh
from rhino.ir.microbatch.programs import SplitPrograms, loop_pieces
from rhino.ir.microbatch.ways import PipelineWays
from rhino.microbatch.forms import ONE
from rhino.passes.entry import main_function, require_static_shapes, topology_cluster
from rhino.passes.plan.write_pipeline import PASSES, write_pipeline
from rhino.passes.registry import Pass, asked, option, register
from rhino.pipeline.search.deeper import plan_deeper
from rhino.pipeline.search.options import JointOptions
from rhino.pipeline.search.solution import JointSolution
from rhino.sharding.meshes import names_around, read_mesh

_ONE_PROGRAM = "or plan it as one program (stages=1)"
_UNWRITTEN = "plan it as one program (stages=1), and please report it: this is a bug in rhino-plan-pipeline"


@register
class PlanPipeline(Pass):
    """Search a pipeline for a cluster, and make the step its fragments, transfers and task lists.

    The search goes over stages, replicas of a stage, the mesh of a replica, micro-batches and schedules, with one
    sharding search for each number of devices and micro-batches. Stages have equal numbers of devices wherever these
    divide so; else the first have more. What stages compute again is chosen, too. The step becomes what the search had
    for the best: computed again as by rhino-recompute and rhino-order-products, and cut as by rhino-split-scans,
    rhino-split-microbatch (or rhino-adopt-microbatches) and rhino-accumulate-in-loops. It gets the stages and layouts
    that were found, as of rhino-plan-stages and rhino-plan-sharding, and is made its fragments and their task lists by
    rhino-form-fragments, rhino-replicate-fragments, rhino-lower-transfers and rhino-schedule.

    A step that rhino-split-microbatch refuses is one micro-batch, with a warning, unless more are asked for.

    Requires: as rhino-plan-sharding; with `microbatches`, a step that rhino-split-microbatch accepts. Of state that is
    on stages already, `rhino.pin` says where; `stages` and `mesh` are then those that it is on.

    Ensures: @main is in fragments over the meshes of its stages; `rhino.schedule` has the tasks of every group,
    `rhino.plan` and `rhino.cluster` say what was chosen, what it is predicted to take, and what lost.

    Options:
      topology, level, memory-limit, budget: as of rhino-plan-sharding.
      mesh: of one replica of a stage; stages are then equal, but where those of several widths are joined by "+".
      remat: auto chooses what is computed again; else it is what the step has.

    Example:
      ```mlir
      // rhino-opt --rhino-plan-pipeline='topology=p3.16xlarge:8 stages=16'
      func.func @main(%w: tensor<64x64xf32> {rhino.role = "param"}, ...
      // becomes
      func.func @main(%w: !mpmd.mesh_tensor<"stage0", tensor<64x64xf32>, sharding=<@mesh, [{}, {"x"}]>>, ...
        %0 = mpmd.for (%acc) {iterations = 64 : ui32} ...
      ```
    """

    name: ClassVar[str] = "rhino-plan-pipeline"
    runs: ClassVar[tuple[str, ...]] = PASSES

    topology: str = option("", "cluster: preset[:hosts], a YAML file, or `local`")
    level: str = asked("level", "how hard to search", ("O1", "O2"))
    mesh: str = asked("mesh", "sizes of the mesh axes of one replica of a stage; by default searched")
    memory_limit: int = asked("memory_limit")
    budget: float = asked("budget")
    stages: int = asked("stages", "number of stages; 0 leaves it to the search")
    microbatches: int = asked("microbatches")
    fewer: bool = asked("fewer")
    groups: int = asked("groups")
    schedule: str = asked("schedule")
    statistics: str = asked("statistics")
    remat: str = asked("remat")
    rival: float = option(0.0, "seconds of a plan that there is, which a pipeline has to take less than; 0 for none")

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Plan and rewrite. Raises PassError at @main when nothing fits, RhinoError for a bad option."""
        self.plan(module, log, log.session.deadline.sooner(self.budget))

    def plan(self, module: ir.Module, log: PassLog, deadline: Deadline = NEVER) -> JointSolution:
        """As `run`, until a deadline; returns the search's answer, priced as it is written."""
        cluster = topology_cluster(self.topology, log, self.name)
        main = main_function(module, self.name)
        here = main.location
        if given_mesh(module):
            remedy = "drop it and the shardings over it, or run rhino-plan-sharding"
            raise PassError(
                main, f"the module has sdy.mesh @{MESH} over all devices, but stages have their own", [remedy]
            )
        try:
            require_static_shapes(main, self.name)
            pieces = loop_pieces(self.level, cluster.num_devices, self.stages)
            programs = SplitPrograms.of(module, self.level, self.statistics, self.microbatches, deadline, pieces)
        except PassError as error:
            # What the passes that cut a step refuse at an operation is the step's.
            raise error from NotPipelined(error.message)
        if programs.uncut is not None:
            why = programs.uncut.diagnostic
            # What would help in more micro-batches; that it is one is done.
            helps = [n.message.removeprefix(ONE).lstrip(",; ") for n in why.notes if n.position == why.position]
            log.warning(
                why.position,
                f"{why.message}; so the pipeline has one micro-batch, and its stages wait for each other",
                [text for text in helps if text],
            )
        meshes = [read_mesh(text or "+") for text in self.mesh.split("+")] if self.mesh else []
        own = tuple(sdy.mesh_axes(module).get(MANUAL_MESH, ()))
        options = JointOptions(
            level=self.level,
            memory_limit=self.memory_limit or None,
            mesh=tuple(sizes for sizes, _ in meshes),
            axes=tuple(() if REPLICA_AXIS in names else names_around(own, sizes, names) for sizes, names in meshes),
            stages=self.stages,
            microbatches=self.microbatches,
            fewer=self.fewer,
            groups=self.groups,
            schedule=self.schedule,
            deadline=deadline,
            cut_s=programs.cut_s,
            rival_s=self.rival or inf,
        )
        try:
            ways = PipelineWays(module, programs, chooses=self.remat == "auto")
            ways, way, solution = plan_deeper(ways, cluster, options, log.session.progress)
            best = solution.best
            if best.step_time_s >= options.rival_s:
                raise NotFaster(best.name, best.step_time_s, best.peak_bytes, options.rival_s)
            programs = ways.programs(way)
        except PassError:
            raise
        except RhinoError as error:
            if programs.uncut is not None:
                # What stands in the way of micro-batches does so here, and its remedies are what helps.
                raise PassError(why.position, f"{why.message}; {error.message}", [*helps, _ONE_PROGRAM]) from error
            raise PassError(main, error.message, [error.remedy] if error.remedy else []) from error
        try:
            session = replace(log.session, cluster=cluster, deadline=deadline)
            run = partial(self.run_pipeline, module=module, log=log, session=session)
            written = write_pipeline(module, programs, cluster, solution, log, run)
        except (RhinoError, ir.MLIRError) as error:
            # These passes check annotations that were written by the search: what they say is not about the step.
            where = error.diagnostic.position if isinstance(error, PassError) else here
            message = f"the pipeline of {solution.best.shape.stages} stages that was found cannot be cut here"
            raise PassError(where, message, [_UNWRITTEN]) from error
        log.count("candidates", solution.candidates)
        return written
