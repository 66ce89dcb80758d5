"""`rhino-plan-pipeline`: asks the joint search for a pipeline, and turns the step into its fragments and task lists."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from jaxlib.mlir import ir

from rhino.cluster import Cluster
from rhino.cost.collectives import ring_bytes
from rhino.dialect import functions
from rhino.dialect.attributes import RhinoCost, RhinoMicrobatches, RhinoPlan
from rhino.dialect.context import make_context, parse_bytes, to_bytecode
from rhino.errors import RhinoError
from rhino.joint.breakdown import stage_traffic
from rhino.joint.options import Options
from rhino.joint.search import plan_jointly
from rhino.joint.sharded import Prepared, lay_out_within, prepare
from rhino.joint.solution import Candidate, JointSolution
from rhino.passes.diagnostics import PassError, PassLog
from rhino.passes.entry import main_function, require_static_shapes, topology_cluster
from rhino.passes.import_graph import import_graph
from rhino.passes.plan.plan_sharding import MESH, given_mesh, sizes_of, summarise
from rhino.passes.plan.stage_shardings import annotate_stages
from rhino.passes.registry import Pass, build, option, register
from rhino.passes.stage.plan_stages import annotate as write_stages

# Loops over layers become at most this many, so that stages can end between any two layers of most models.
_PIECES = {"O1": 16, "O2": 48}
# Of the finest cuts of the batch, the coarser ones are tried if those are refused: examples may be routed in groups.
_ATTEMPTS = 5


@register
class PlanPipeline(Pass):
    """Search a pipeline for a cluster, and make the step its fragments, transfers and task lists.

    The search goes over stages, replicas of a stage, the mesh of a replica, micro-batches and schedules, with one
    sharding search for each number of devices and micro-batches. Stages have equal numbers of devices wherever these
    divide so; else the first have more. The best is written as rhino-split-scans, rhino-split-microbatch,
    rhino-plan-sharding, rhino-plan-stages, rhino-form-fragments, rhino-replicate-fragments and rhino-schedule would,
    one after the other.

    Requires: as rhino-plan-sharding; a step that rhino-split-microbatch accepts.

    Ensures: @main is in fragments over the meshes of its stages; `rhino.schedule` has the tasks of every group,
    `rhino.plan` and `rhino.cluster` say what was chosen, what it is predicted to take, and what lost.

    Options:
      topology, level, memory-limit, budget: as of rhino-plan-sharding.
      mesh: of one replica of a stage; stages are then equal.

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

    topology: str = option("", "cluster: preset[:hosts], a YAML file, or `local`")
    level: str = option("O1", "search effort", ("O1", "O2"))
    mesh: str = option("", "sizes of the mesh axes of one replica of a stage; searched when empty")
    memory_limit: int = option(0, "bytes per device; 0 means nine tenths of the device's memory")
    budget: float = option(0.0, "seconds after which the best plan so far is taken; 0 for no limit")
    stages: int = option(0, "number of stages; 0 leaves it to the search")
    microbatches: int = option(0, "micro-batches of each replica; 0 leaves it to the search")
    schedule: str = option("", "pipeline schedule; searched when empty")
    statistics: str = option("batch", "as of rhino-split-microbatch", ("batch", "micro-batch"))

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Plan and rewrite. Raises PassError at @main when nothing fits, RhinoError for a bad option."""
        self.plan(module, log)

    def plan(self, module: ir.Module, log: PassLog) -> JointSolution:
        """As `run`; returns the search's answer."""
        cluster = topology_cluster(self.topology, self.name)
        main = main_function(module, self.name)
        require_static_shapes(main, self.name)
        if given_mesh(module):
            remedy = "drop it and the shardings over it, or run rhino-plan-sharding"
            raise PassError(
                main, f"the module has sdy.mesh @{MESH} over all devices, but stages have their own", [remedy]
            )
        programs = SplitPrograms.of(module, self.level, self.statistics)
        options = Options(
            level=self.level,
            memory_limit=self.memory_limit or None,
            mesh=sizes_of(self.mesh) or None,
            stages=self.stages,
            microbatches=self.microbatches,
            schedule=self.schedule,
            budget_s=self.budget or None,
        )
        try:
            solution = plan_jointly(programs, cluster, options, log.progress)
        except RhinoError as error:
            if isinstance(error, PassError):
                raise
            raise PassError(main, error.message, [error.remedy] if error.remedy else []) from error
        write(module, programs, cluster, solution)
        log.count("candidates", solution.candidates)
        return solution


@dataclass
class SplitPrograms:
    """The step cut into slices, made when asked for. `bytecode` is of the step with its loops over layers split.

    `statistics`: as of rhino-split-microbatch. `cut` has the steps cut so far, as bytecode.
    """

    bytecode: bytes
    batch: int
    statistics: str = "batch"
    cut: dict[int, bytes] = field(default_factory=dict)
    known: dict[int, Prepared | None] = field(default_factory=dict)
    refused: dict[int, PassError] = field(default_factory=dict)

    @classmethod
    def of(cls, module: ir.Module, level: str, statistics: str = "batch") -> SplitPrograms:
        """Of a normalised module, which stays as it is.

        Raises:
          PassError: the step has no batch, or cannot be cut into micro-batches; at the operation.
        """
        copy = parse_bytes(to_bytecode(module), make_context())
        _apply("rhino-split-scans", copy, count=_PIECES[level])
        main = functions.find(copy, "main")
        assert main is not None
        batch = _batch_size(main)
        found = cls(to_bytecode(copy), batch, statistics)
        # What cannot be cut at all is refused here, at the operation; what cannot be cut so often, later and quietly.
        for slices in [n for n in range(batch, 1, -1) if batch % n == 0][:_ATTEMPTS] or [1]:
            if found.prepared(slices) is not None:
                return found
        raise next(iter(found.refused.values()))

    @property
    def example(self) -> Prepared:
        """The step cut as often as was tried first."""
        return next(p for p in self.known.values() if p is not None)

    def module(self, slices: int) -> ir.Module:
        """The step as a loop over so many slices."""
        if slices in self.cut:
            return parse_bytes(self.cut[slices], make_context())
        module = parse_bytes(self.bytecode, make_context())
        _apply("rhino-split-microbatch", module, count=slices, statistics=self.statistics)
        _apply("rhino-accumulate-in-loops", module)
        self.cut[slices] = to_bytecode(module)
        return module

    def make(self, slices: int) -> Prepared:
        """The same as data."""
        graph = import_graph(self.module(slices))
        return prepare(graph)

    def prepared(self, slices: int) -> Prepared | None:
        """As `make`, remembered; None if the step cannot be cut so."""
        if slices not in self.known:
            try:
                self.known[slices] = self.make(slices)
            except PassError as error:
                self.refused[slices] = error
                self.known[slices] = None
        return self.known[slices]

    def refusal(self, slices: int) -> RhinoError | None:
        """Why it cannot be cut so."""
        return self.refused.get(slices)


def _apply(name: str, module: ir.Module, **options: Any) -> None:
    """Runs a pass whose remarks nobody asked for."""
    given = [(option.replace("_", "-"), str(value)) for option, value in options.items()]
    build(name, given).run(module, PassLog(lambda diagnostic: None, module.operation.location))


def _batch_size(main: Any) -> int:
    """The leading size of the batch arguments: that of the largest."""
    sizes = [
        (a.type.shape[0], -i)
        for i, (a, given) in enumerate(
            zip(main.regions[0].blocks[0].arguments, functions.argument_attributes(main), strict=True)
        )
        if "rhino.role" in given and given["rhino.role"].value == "batch" and len(a.type.shape)
    ]
    if not sizes:
        raise PassError(main, "no argument of the step is a batch", ["run rhino-classify-args, or give rhino.role"])
    return int(max(sizes)[0])


def write(module: ir.Module, programs: SplitPrograms, cluster: Cluster, solution: JointSolution) -> None:
    """The module's @main becomes the fragments of the best pipeline, with its task lists and summary."""
    best = solution.best
    made = programs.module(best.shape.slices)
    statistics = _statistics(made)
    write_stages(made, best.prepared.graph, best.stages)
    meshes = _lay_out(made, best, cluster)
    split = bool(best.schedule.split)
    _apply("rhino-form-fragments", made, split_backward=split, meshes=",".join(meshes))
    _apply("rhino-replicate-fragments", made, count=best.shape.replicas)
    _cost(made, best)
    _summary(made, cluster, solution)
    if statistics != "batch":
        RhinoPlan.attach(made, {**(RhinoPlan.of(made) or {}), "statistics": statistics})
    _apply("rhino-schedule", made, schedule=best.schedule.name)
    replace_contents(module, to_bytecode(made))


def _statistics(module: ir.Module) -> str:
    """Of which examples sums are that examples need, as the loop over micro-batches says."""
    main = functions.find(module, "main")
    found = [RhinoMicrobatches.of(op) for op in functions.walk(main) if RhinoMicrobatches.name in op.attributes]
    return str(found[0].get("statistics", "batch")) if found and found[0] else "batch"


def _lay_out(module: ir.Module, best: Candidate, cluster: Cluster) -> tuple[str, ...]:
    """Writes the shardings. Sums that stages share were cut since the search, so that the program is another one."""
    graph = import_graph(module)
    prepared = prepare(graph)
    solutions = []
    for width in best.shape.kinds:
        sharded = lay_out_within(prepared, cluster, best.shape, width, best.layouts[width].mesh, best.limit)
        if sharded is None:
            raise RhinoError(f"the sharding of {best.name} was not found again", "this is a bug in rhino-plan-pipeline")
        solutions.append(sharded.solution)
    return annotate_stages(module, graph, solutions, [best.shape.kinds.index(width) for width in best.shape.widths])


def _cost(module: ir.Module, best: Candidate) -> None:
    """Writes the predicted seconds of each fragment."""
    costs = best.pipeline.costs
    seconds = {
        "prepare": costs.prepare_s,
        "forward": costs.forward_s,
        "backward": [
            b - w if best.schedule.split and s in best.schedule.split else b
            for s, (b, w) in enumerate(zip(costs.backward_s, costs.weight_s, strict=True))
        ],
        "weight": costs.weight_s,
        "update": costs.apply_s,
    }
    parts: dict[tuple[str, int], list[Any]] = {}
    for function in functions.all_functions(module):
        for op in functions.walk(function):
            if op.name == "mpmd.fragment":
                origin = str(op.attributes["origin"])
                kind = next(k for k in seconds if f'"{k}"' in origin)
                parts.setdefault((kind, ir.IntegerAttr(op.attributes["stage_id"]).value), []).append(op)
    for (kind, stage), ops in parts.items():
        for op in ops:
            # Of what comes at several levels nobody knows the shares.
            RhinoCost.attach(op, {"time_s": seconds[kind][stage] / len(ops)})


def _summary(module: ir.Module, cluster: Cluster, solution: JointSolution) -> None:
    """Writes `rhino.plan` and `rhino.cluster`."""
    best = solution.best
    loads, simulation = best.pipeline.loads, best.simulation
    summarise(module, cluster, best.layout_of(0).solution)
    data = RhinoPlan.of(module)
    assert data is not None
    slowest = max(range(best.shape.stages), key=lambda s: loads.compute[s] + loads.comm[s])
    replica_s = best.pipeline.replica_s[slowest]
    busy = loads.compute[slowest] / best.shape.replicas
    comm = loads.comm[slowest] / best.shape.replicas + replica_s
    replica = [["replica", best.shape.replicas]] if best.shape.replicas > 1 else []
    meshes = [[*replica, *map(list, best.layout_of(s).solution.mesh)] for s in range(best.shape.stages)]
    differ = {"meshes": meshes} if len(best.shape.kinds) > 1 else {}
    memory = best.pipeline.memory
    comm_bytes, collectives = _traffic(best, slowest)
    data.update(
        {
            "mesh": meshes[0],
            **differ,
            "stages": best.shape.stages,
            "groups": best.shape.stages,
            "microbatches": best.shape.microbatches,
            "schedule": best.schedule.name,
            "predicted": {
                **data["predicted"],
                "step_time_s": simulation.step_time_s,
                "compute_s": busy,
                "comm_s": comm,
                "bubble_s": max(0.0, simulation.step_time_s - busy - comm),
                "peak_bytes": best.peak_bytes,
                "comm_bytes": comm_bytes,
                "collectives": collectives,
                "memory": {
                    "argument_bytes": max(m.argument_bytes for m in memory),
                    "temp_bytes": max(
                        m.peak_bytes(k) - m.argument_bytes
                        for m, k in zip(memory, simulation.in_flight_peak, strict=True)
                    ),
                },
            },
            "search": {"candidates": solution.candidates, "gap": solution.gap},
            "alternatives": [
                {"name": a.name, "step_time_s": a.step_time_s, "peak_bytes": a.peak_bytes, "why": a.why}
                for a in solution.alternatives
            ],
        }
    )
    RhinoPlan.attach(module, data)


def _traffic(best: Candidate, stage: int) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes a device of a stage sends within its group in a step, and executions, by kind of collective."""
    solution, replicas = best.layout_of(stage).solution, best.shape.replicas
    found = stage_traffic(solution.costs, solution.states, best.stages.stage_of_op, best.stages.stages)[stage]
    # A replica runs its share of the micro-batches; what runs once a step is counted with them.
    nbytes = {kind: round(sent / replicas) for kind, (sent, _) in sorted(found.items())}
    counts = {kind: -(-count // replicas) for kind, (_, count) in sorted(found.items())}
    if replicas > 1:
        summed = ring_bytes("all-reduce", replicas, best.pipeline.memory[stage].kept_bytes)
        nbytes["all-reduce"] = nbytes.get("all-reduce", 0) + round(summed)
        counts["all-reduce"] = counts.get("all-reduce", 0) + 1
    return nbytes, counts


def replace_contents(module: ir.Module, bytecode: bytes) -> None:
    """The module becomes what the bytecode has, operations and attributes."""
    text = parse_bytes(bytecode, module.context)
    for op in list(module.body.operations):
        op.operation.erase()
    kept = [op.operation for op in text.body.operations]
    with module.context, ir.Location.unknown():
        for op in kept:
            module.body.append(op.detach_from_parent())
    given, mine = text.operation.attributes, module.operation.attributes
    for name in [name for name in mine if name not in given]:
        del mine[name]
    for name in list(given):
        mine[name] = given[name]
