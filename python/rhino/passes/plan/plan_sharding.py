"""`rhino-plan-sharding`: asks the search for a plan and writes it into the module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import ClassVar

from jaxlib.mlir import ir

from rhino.deadline import NEVER, Deadline
from rhino.dialect import functions
from rhino.dialect import sdy as sdy_attributes
from rhino.dialect.attributes import RhinoHosted
from rhino.dialect.context import copied
from rhino.errors import NothingFits, RhinoError
from rhino.ir.diagnostics import PassError, PassLog, errors_at
from rhino.ir.import_graph import import_graph, number_program
from rhino.ir.manual import MANUAL_MESH
from rhino.ir.meshes import MESH, given_mesh
from rhino.ir.microbatch.one_program import OneProgram
from rhino.ir.microbatch.programs import statistics_of
from rhino.ir.propagated import RESHARDS, give_rules, read_propagated, split_broadcasts, take_rules
from rhino.ir.spread import put_within
from rhino.ir.summary import Propagated, summarise
from rhino.ir.write_layouts import annotate
from rhino.machine import Cluster
from rhino.machine.padding import describe, gains
from rhino.passes.entry import main_function, topology_cluster
from rhino.passes.plan.hosted import Searched, may_keep_state, search_hosted
from rhino.passes.registry import Pass, asked, made, option, register
from rhino.program.data import Graph
from rhino.program.recomputation import KEEP, Recomputation
from rhino.sharding import Options, Solution
from rhino.sharding.estimate import Estimated, estimate, estimate_propagated
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
      rhino-accumulate-in-loops, and compute again what it would keep, made by rhino-recompute. Where nothing fits so,
      rhino-offload keeps optimizer state in the memory of the hosts. Deterministic.

    Options:
      topology: the cluster to plan for.
      level, mesh, memory-limit, budget: what to search, and for how long.
      microbatches: 1 leaves the step whole.
      remat: auto chooses what is computed again; else it is what the step has.
      offload: auto keeps optimizer state in the memory of the hosts where nothing else fits; needed: that is known.
      rival: a plan has to take less.
      costly: refuse raises an error, soon, where the fastest plans do not fit and those that hold their arguments lose
        more than a third of a step to something else than computing divided perfectly.

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
    runs: ClassVar[tuple[str, ...]] = (
        _PROPAGATE, "sdy-insert-explicit-reshards",
        "rhino-offload", "rhino-recompute", "rhino-order-products", "rhino-split-microbatch",
        "rhino-accumulate-in-loops",
    )  # fmt: skip

    topology: str = option("", "cluster: preset[:hosts], a YAML file, or `local`")
    level: str = asked("level")
    mesh: str = asked("mesh")
    memory_limit: int = asked("memory_limit")
    budget: float = asked("budget")
    microbatches: int = asked("microbatches")
    statistics: str = asked("statistics")
    remat: str = asked("remat")
    offload: str = asked("offload")
    rival: float = option(0.0, "seconds of a plan that there is, which this one has to take less than; 0 for none")
    costly: str = option("plan", "what is done with a step of which memory costs much", ("plan", "refuse"))

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
        mesh = self._within(module, given_mesh(module), cluster)
        if not mesh:
            raise PassError(main, f"level O0 needs sdy.mesh @{MESH} and shardings over it", ["add them, or use O1"])
        here = main.location
        split_broadcasts(module)
        give_rules(module)
        self.run_pipeline([_PROPAGATE], module, log)
        with errors_at(here):
            found = self._predict(module, cluster, mesh, log)
        take_rules(module)
        if found.clashes:
            first, other = found.clashes[0]
            more = f", and {len(found.clashes) - 1} more such pairs" if len(found.clashes) > 1 else ""
            text = f"predicted as if {other} were laid out like {first}, which it is combined with{more}"
            log.remark(here, text, ["what changes its layout between them is not in the prediction"])
        if found.guessed:
            more = f", and {len(found.guessed) - 1} more like it" if len(found.guessed) > 1 else ""
            text = f"{found.guessed[0]} splits a dimension along several factors of a reshape{more}"
            log.remark(here, text, ["the prediction has the cheapest layout instead, and what changes to it"])
        summarise(module, cluster, Propagated("O0", tuple(mesh), found.predicted))

    def _predict(self, module: ir.Module, cluster: Cluster, mesh: Sequence[tuple[str, int]], log: PassLog) -> Estimated:
        """What propagated layouts come to, in a copy in which Shardy has said where they change."""
        scratch = copied(module)
        try:
            self.run_pipeline([RESHARDS], scratch, log)
        except PassError as error:
            why = "the changes of layouts in it are guessed: Shardy cannot say where they are"
            log.remark(main_function(module, self.name).location, why, [error.message])
            return estimate(import_graph(module, read_op_shardings=True), cluster, mesh, strict=False)
        return estimate_propagated(read_propagated(scratch), cluster, mesh)

    def _within(self, module: ir.Module, mesh: list[tuple[str, int]], cluster: Cluster) -> list[tuple[str, int]]:
        """The step's own mesh, that stood aside, within the one given or one of all devices; everything over that."""
        own = tuple(sdy_attributes.mesh_axes(module).get(MANUAL_MESH, ()))
        if not own:
            return mesh
        if not mesh:
            sizes, _ = read_mesh(self.mesh)
            mesh = list(mesh_around(own, sizes, cluster) if sizes else meshes_around(own, cluster, "O1")[0])
            sdy_attributes.add_mesh(module, MESH, mesh)
        put_within(module, MESH, mesh)
        return mesh

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
            rival_s=self.rival or inf,
            costly=self.costly == "plan",
        )
        with errors_at(main):
            searched = self._searched(module, graph, cluster, options, log)
        form, solution = searched.form, searched.solution
        again = searched.programs.way(form.way).told if form.way else None
        undoing, adding = recomputing(again)
        rewrites = [*undoing, *adding]
        if form.parts > 1:
            rewrites += [
                made("rhino-split-microbatch", count=form.parts, statistics=self.statistics, sums=form.sums),
                made("rhino-accumulate-in-loops"),
            ]
        if searched.programs.hosted is not None:
            rewrites.append(made("rhino-offload", count=searched.programs.hosted))
        if rewrites:
            self.run_pipeline(rewrites, module, log)
            graph = import_graph(module)
        say_unkept(main, graph, solution, log)
        annotate(module, graph, solution)
        missed = unsplit(graph, cluster, options, solution, log.session.progress)
        now = solution.predicted.step_time_s, solution.predicted.memory.peak_bytes
        for one in missed:
            if gains(one, *now):
                log.remark(main, describe(one, cluster.num_devices, *now))
        summarise(module, cluster, solution, missed, form.parts, statistics_of(module), again, form.sums)
        log.count("candidates", solution.candidates)
        log.count("ops", len(graph.ops))
        log.count("decisions", len(solution.problem.nodes))
        log.count("tied-decisions", len(solution.costs.quotient.nodes))
        return solution

    def _searched(self, module: ir.Module, graph: Graph, cluster: Cluster, options: Options, log: PassLog) -> Searched:
        """The fastest program that fits; state is kept in the host's memory only where none does without."""
        kept = any(RhinoHosted.name in held for held in functions.argument_attributes(functions.find(module, "main")))

        def search(updates: int | None, options: Options) -> Searched:
            chooses = self.remat == "auto"
            programs = OneProgram(module, graph, self.statistics, self.microbatches, chooses, updates)
            if programs.graph(programs.fewest) is None:
                raise programs.refused[programs.fewest, 1]
            return Searched(
                programs, *plan_in_parts(programs, cluster, options, log.session.progress, begun=log.session.begun)
            )

        may_keep = self.offload != "none" and may_keep_state(graph, cluster)
        nothing = NothingFits("there is no optimizer state that the hosts can keep")
        if self.offload != "needed":
            try:
                return search(0 if kept else None, replace(options, smallest=not may_keep))
            except NothingFits as error:
                nothing = error
        if not may_keep:
            raise nothing
        try:
            found = search_hosted(graph, cluster, options, search)
        except NothingFits as least:
            message = f"even with optimizer state on the hosts, {least.message}"
            raise NothingFits(message, least.remedy) from nothing
        if found is not None:
            return found
        if self.offload == "needed":
            raise nothing
        return search(0 if kept else None, options)  # for the message: it is of the smallest plan


def _check_pins(main: ir.Operation, graph: Graph, has_mesh: bool) -> None:
    if graph.pins and not (has_mesh or graph.axes):
        name = next(iter(graph.pins.values()))[0]
        raise PassError(main, f"{name} has a sharding but there is no sdy.mesh @{MESH}", ["add the mesh it refers to"])


def recomputing(again: Recomputation | None) -> tuple[list[Pass], list[Pass]]:
    """The passes that undo what a step computes again, and those that have it compute again what was chosen.

    In the end products are ordered by what is stacked then.
    """
    if again is None:
        return [], []
    undoing: list[Pass] = [made("rhino-recompute", policy="none")] if again.undoes else []
    ordering = made("rhino-order-products")
    if again.policy == KEEP.told.policy:
        return undoing, [ordering]
    return undoing, [made("rhino-recompute", policy=again.policy, count=again.count), ordering]


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
