"""`rhino-plan-sharding`: asks the search for a plan and writes it into the module."""

from __future__ import annotations

from typing import ClassVar

from jaxlib.mlir import ir

from rhino.deadline import NEVER, Deadline
from rhino.dialect import functions
from rhino.dialect import sdy as sdy_attributes
from rhino.errors import RhinoError
from rhino.ir.diagnostics import PassError, PassLog, errors_at
from rhino.ir.import_graph import import_graph, number_program
from rhino.ir.manual import MANUAL_MESH, outermost
from rhino.ir.meshes import MESH, given_mesh, put_away
from rhino.ir.microbatch.one_program import OneProgram
from rhino.ir.microbatch.programs import statistics_of
from rhino.ir.spread import widen
from rhino.ir.summary import Propagated, summarise
from rhino.ir.write_layouts import annotate
from rhino.machine import Cluster
from rhino.machine.padding import describe, gains
from rhino.passes.entry import main_function, topology_cluster
from rhino.passes.registry import Pass, asked, made, option, register
from rhino.program.data import Graph
from rhino.sharding import Options, Solution, plan_sharding
from rhino.sharding.estimate import estimate
from rhino.sharding.meshes import mesh_around, meshes_around, names_around, read_mesh
from rhino.sharding.padding import unsplit
from rhino.sharding.parts import plan_in_parts
from rhino.sharding.pinning import pinned_states

_PROPAGATE = "sdy-propagation-pipeline"


@register
class PlanSharding(Pass):
    """Search a sharding of every tensor for a cluster, and write it as `sdy.mesh` and `sdy.sharding`.

    Requires:
      `@main` with static shapes and no calls (run `rhino-inline`); argument roles (run `rhino-classify-args`) make the
      report and the cost of input better. Shardings already on arguments of a module that has `sdy.mesh @mesh` are
      kept, and that mesh is used.

    Ensures:
      Every argument, result and tensor whose layout matters has a closed `sdy.sharding` over `@mesh`; where an op
      reads a value in another layout, an `sdy.sharding_constraint` stands before it. Module attributes `rhino.plan`
      and `rhino.cluster` say what was chosen, its predicted time, memory and communication, and what lost.
      Donated arguments have the sharding of the result that takes their buffer. Where the fastest plan of the whole
      batch does not fit in memory, the step may be a loop over micro-batches, made by rhino-split-microbatch and
      rhino-accumulate-in-loops. Deterministic.

    Options:
      topology: the cluster to plan for.
      level, mesh, memory-limit, budget: what to search, and for how long.
      microbatches: 1 leaves the step whole.

    Example:
      ```mlir
      // rhino-opt --rhino-plan-sharding='topology=dgx-h100:1'
      func.func @main(%x: tensor<64x8xf32>, %w: tensor<8x8xf32>) -> tensor<64x8xf32> {
        %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      // becomes
      sdy.mesh @mesh = <["x"=8]>
      func.func @main(%x: tensor<64x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, ...
        %0 = stablehlo.dot_general ... {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>}
      ```
    """

    name: ClassVar[str] = "rhino-plan-sharding"
    runs: ClassVar[tuple[str, ...]] = (_PROPAGATE, "rhino-split-microbatch", "rhino-accumulate-in-loops")

    topology: str = option("", "cluster: preset[:hosts], a YAML file, or `local`")
    level: str = asked("level")
    mesh: str = asked("mesh")
    memory_limit: int = asked("memory_limit")
    budget: float = asked("budget")
    microbatches: int = asked("microbatches")
    statistics: str = asked("statistics")

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Plan and annotate. Raises PassError at @main when nothing fits, RhinoError for a bad option."""
        if self.microbatches < 0:
            raise RhinoError(f"microbatches {self.microbatches} is not a count", "give 0 to leave it open")
        if self.level == "O0" and self.microbatches > 1:
            raise RhinoError("level O0 makes no micro-batches", "plan at O1, or without them")
        if self.level == "O0":
            self._propagate(module, log)
        else:
            self.plan(module, log, log.session.deadline.sooner(self.budget))

    def _propagate(self, module: ir.Module, log: PassLog) -> None:
        """Level O0: Shardy's propagation decides everything; only what it comes to is predicted and reported."""
        cluster = topology_cluster(self.topology, log, self.name)
        main = main_function(module, self.name)
        mesh = given_mesh(module) or self._around(module, cluster)
        if not mesh:
            raise PassError(main, f"level O0 needs sdy.mesh @{MESH} and shardings over it", ["add them, or use O1"])
        here = main.location
        self.run_pipeline([_PROPAGATE], module, log)
        graph = import_graph(module, read_op_shardings=True)
        with errors_at(here):
            found = estimate(graph, cluster, mesh, strict=False)
        if found.clashes:
            first, other = found.clashes[0]
            more = f", and {len(found.clashes) - 1} more such pairs" if len(found.clashes) > 1 else ""
            text = f"predicted as if {other} were laid out like {first}, which it is combined with{more}"
            log.remark(here, text, ["what changes its layout between them is not in the prediction"])
        summarise(module, cluster, Propagated("O0", tuple(mesh), found.predicted))

    def _around(self, module: ir.Module, cluster: Cluster) -> list[tuple[str, int]]:
        """The step's own mesh, that stood aside, within one of all devices, and everything over that."""
        own = tuple(sdy_attributes.mesh_axes(module).get(MANUAL_MESH, ()))
        if not own:
            return []
        sizes, _ = read_mesh(self.mesh)
        mesh = mesh_around(own, sizes, cluster) if sizes else meshes_around(own, cluster, "O1")[0]
        for function in functions.all_functions(module):
            for op in outermost(function):
                widen(op, own, mesh, alone=True)
        sdy_attributes.add_mesh(module, MESH, mesh)
        put_away(module, MESH)
        return list(mesh)

    def plan(self, module: ir.Module, log: PassLog, deadline: Deadline = NEVER) -> Solution:
        """As `run`, until a deadline; returns the search's answer."""
        if self.memory_limit < 0:
            raise RhinoError(f"memory-limit {self.memory_limit} is negative", "give bytes per device, or 0")
        cluster = topology_cluster(self.topology, log, self.name)
        main = main_function(module, self.name)
        graph = import_graph(module)
        given = given_mesh(module)
        _check_pins(main, graph, bool(given))
        sizes, names = read_mesh(self.mesh)
        if given:
            sizes, names = tuple(n for _, n in given), tuple(axis for axis, _ in given)
        options = Options(
            level=self.level,
            mesh=sizes or None,
            axes=names if given else names_around(graph.axes, sizes, names),
            memory_limit=self.memory_limit or None,
            deadline=deadline,
        )
        programs = OneProgram(module, graph, self.statistics)
        with errors_at(main):
            parts, solution = self._search(programs, cluster, options, log)
        if parts > 1:
            self.run_pipeline(
                [
                    made("rhino-split-microbatch", count=parts, statistics=self.statistics),
                    made("rhino-accumulate-in-loops"),
                ],
                module,
                log,
            )
            graph = import_graph(module)
        say_unkept(main, graph, solution, log)
        annotate(module, graph, solution)
        missed = unsplit(graph, cluster, options, solution, log.session.progress)
        now = solution.predicted.step_time_s, solution.predicted.memory.peak_bytes
        for one in missed:
            if gains(one, *now):
                log.remark(main, describe(one, cluster.num_devices, *now))
        summarise(module, cluster, solution, missed, parts, statistics_of(module))
        log.count("candidates", solution.candidates)
        log.count("ops", len(graph.ops))
        log.count("decisions", len(solution.problem.nodes))
        log.count("tied-decisions", len(solution.costs.quotient.nodes))
        return solution

    def _search(self, programs: OneProgram, cluster: Cluster, options: Options, log: PassLog) -> tuple[int, Solution]:
        """The best plan, and into how many micro-batches it cuts the step."""
        asked = self.microbatches
        if not asked:
            return plan_in_parts(programs, cluster, options, log.session.progress)
        graph = programs.graph(asked)
        if graph is None:
            raise programs.refused[asked]
        cut = 1 if graph is programs.whole else asked
        return cut, plan_sharding(graph, cluster, options, log.session.progress)


def _check_pins(main: ir.Operation, graph: Graph, has_mesh: bool) -> None:
    if graph.pins and not (has_mesh or graph.axes):
        name = next(iter(graph.pins.values()))[0]
        raise PassError(main, f"{name} has a sharding but there is no sdy.mesh @{MESH}", ["add the mesh it refers to"])


def say_unkept(main: ir.Operation, graph: Graph, solution: Solution, log: PassLog) -> None:
    """Warns of constraints that a plan does not keep, at their places."""
    names, sizes = tuple(n for n, _ in solution.mesh), tuple(s for _, s in solution.mesh)
    unmet = pinned_states(solution.problem, solution.costs.quotient, sizes, names).unmet
    ops = number_program(main)[1] if unmet else []
    for v in unmet:
        shape, (_, dims) = graph.values[v].shape, graph.pins[v]
        asked = "; ".join(f"dim {d} over {', '.join(axes)}" for d, axes in enumerate(dims) if axes)
        what = "x".join(map(str, shape))
        message = f"the constraint is not kept: there is no way to split a value of {what} so here ({asked})"
        log.warning(ops[graph.values[v].producer], message, ["constrain a dimension that divides"])
