"""Writes what the joint search found into the module: shardings, stages, fragments, seconds, task lists, the summary.

Owns which passes make it, and the last price: of what is written, with its planned transfers. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.dialect.attributes import RhinoCost, RhinoDistributed, RhinoMemory, RhinoPlan
from rhino.dialect.context import replace_contents
from rhino.ir.diagnostics import PassLog
from rhino.ir.import_graph import import_graph, number_program
from rhino.ir.microbatch.programs import SplitPrograms, statistics_of
from rhino.ir.pipeline.predicted import predict_pipeline
from rhino.ir.pipeline.program import fragment_ops, read_program
from rhino.ir.pipeline.stage_shardings import annotate_stages
from rhino.ir.pipeline.stages import write_stages
from rhino.ir.summary import summarise
from rhino.machine import Cluster
from rhino.passes.plan.plan_sharding import say_unkept
from rhino.passes.registry import Pass, made
from rhino.pipeline.search.replica import kernels_of_replica, traffic_of_replica
from rhino.pipeline.search.sharded import carried, prepare
from rhino.pipeline.search.solution import JointSolution, PipelineCandidate
from rhino.schema.records import write

# What makes the pipeline of the step that was cut.
PASSES = (
    "rhino-form-fragments",
    "rhino-replicate-fragments",
    "rhino-lower-transfers",
    "rhino-schedule",
)
# Of an operation, while a module is rewritten.
_NUMBER = "rhino.number"


def write_pipeline(
    module: ir.Module,
    programs: SplitPrograms,
    cluster: Cluster,
    solution: JointSolution,
    log: PassLog,
    run: Callable[[Sequence[Pass]], None],
) -> JointSolution:
    """The module's @main becomes the fragments of the best pipeline, with its task lists and summary.

    Args:
      run: has the pass manager run passes on the module. The steps cut for the search were copies.

    Returns: the solution, with the best pipeline priced as it is written. The search counts with the bound of each
      transfer, and with the levels of the graph; the module has planned ones, and the fragments that were formed.
    """
    best = solution.best
    replace_contents(module, programs.bytecode_of(best.shape.parts))
    statistics = statistics_of(module)
    _number(module)
    write_stages(module, best.prepared.graph, best.stages)
    numbers = _numbers(module)
    _share_out(module, numbers, best)  # layouts change the numbers
    meshes = _lay_out(module, numbers, best, cluster, log)
    run(
        [
            made(
                "rhino-form-fragments",
                split_backward=bool(best.schedule.split),
                groups=best.shape.groups if best.shape.chunks > 1 else 0,
                meshes=meshes,
            ),
            made("rhino-replicate-fragments", count=best.shape.replicas),
            made("rhino-lower-transfers"),
        ]
    )
    _cost(module, best)
    RhinoMemory.attach(module, [write(row) for row in best.pipeline.memory])
    searched_s = best.step_time_s
    limit_bytes = max(best.pipeline.costs.limit_bytes, default=0)
    run([made("rhino-schedule", schedule=best.schedule.name, memory_limit=limit_bytes)])
    best = _as_written(module, cluster, best)
    solution = replace(solution, best=best, bound_s=min(solution.bound_s, best.step_time_s))
    _summary(module, cluster, solution, searched_s)
    if statistics != "batch":
        RhinoPlan.attach(module, {**(RhinoPlan.of(module) or {}), "statistics": statistics})
    return solution


def _lay_out(
    module: ir.Module, ops: Mapping[int, int], best: PipelineCandidate, cluster: Cluster, log: PassLog
) -> tuple[str, ...]:
    """Writes the layouts that were priced. The sums that stages share were split since."""
    graph = import_graph(module)
    prepared = prepare(graph)
    widths = best.shape.distinct
    solutions = [carried(prepared, cluster, best.shape, width, best.layouts[width], ops) for width in widths]
    main = functions.find(module, "main")
    assert main is not None
    say_unkept(main, graph, solutions[0], log)
    return annotate_stages(module, graph, solutions, [widths.index(width) for width in best.shape.stage_widths])


def _share_out(module: ir.Module, ops: Mapping[int, int], best: PipelineCandidate) -> None:
    """Writes of which results the replicas of a stage make parts."""
    dims = best.pipeline.replicas.distributed.dims
    for index, op in enumerate(number_program(functions.find(module, "main"))[1]):
        if (old := ops.get(index, -1)) in dims:
            RhinoDistributed.attach(op, dims[old])


def _number(module: ir.Module) -> None:
    """Has every operation of @main carry its number, which rewriting keeps and `_numbers` takes off."""
    number = ir.IntegerType.get_signless(64, module.context)
    for index, op in enumerate(number_program(functions.find(module, "main"))[1]):
        op.attributes[_NUMBER] = ir.IntegerAttr.get(number, index)


def _numbers(module: ir.Module) -> dict[int, int]:
    """By number now, the number that an operation had; none for those that are new."""
    found = {}
    for index, op in enumerate(number_program(functions.find(module, "main"))[1]):
        if _NUMBER in op.attributes:
            found[index] = ir.IntegerAttr(op.attributes[_NUMBER]).value
            del op.attributes[_NUMBER]
    return found


def _cost(module: ir.Module, best: PipelineCandidate) -> None:
    """Writes the predicted seconds of each fragment."""
    seconds = {(f.kind, f.stage): f.seconds for f in best.pipeline.priced.fragments}
    parts: dict[tuple[str, int], list[Any]] = {}
    for fragment, op in zip(read_program(module).fragments, fragment_ops(module), strict=True):
        parts.setdefault((fragment.kind, fragment.stage), []).append(op)
    for (kind, stage), ops in parts.items():
        taken = seconds.get((kind, stage), 0.0)
        if kind == "backward" and ("weight", stage) not in parts:
            taken += seconds.get(("weight", stage), 0.0)
        for op in ops:
            # Of what comes at several levels nobody knows the shares.
            RhinoCost.attach(op, {"time_s": taken / len(ops)})


def _as_written(module: ir.Module, cluster: Cluster, best: PipelineCandidate) -> PipelineCandidate:
    """The pipeline with the price that rhino-estimate reads off the module."""
    found = predict_pipeline(module, cluster)
    return replace(
        best,
        pipeline=replace(best.pipeline, costs=found.costs),
        schedule=found.schedule,
        simulation=found.simulation,
        peak_bytes=max(found.peak_bytes),
    )


def _summary(module: ir.Module, cluster: Cluster, solution: JointSolution, searched_s: float) -> None:
    """Writes `rhino.plan` and `rhino.cluster`."""
    best = solution.best
    loads, simulation = best.pipeline.loads, best.simulation
    summarise(module, cluster, best.layout_of(0).solution, again=best.again)
    data = RhinoPlan.of(module)
    assert data is not None
    costs, groups = best.pipeline.costs, range(best.shape.groups)
    stages = max(map(costs.stages_of, groups), key=lambda on: sum(loads.compute[s] + loads.comm[s] for s in on))
    replica_s = sum(best.pipeline.replicas.seconds[s] for s in stages)
    busy = sum(loads.compute[s] for s in stages) / best.shape.replicas
    comm = sum(loads.comm[s] for s in stages) / best.shape.replicas + replica_s
    replica = [["replica", best.shape.replicas]] if best.shape.replicas > 1 else []
    meshes = [[*replica, *map(list, best.layout_of(g).solution.mesh)] for g in groups]
    differ = {"meshes": meshes} if len(best.shape.distinct) > 1 else {}
    held = [sum(best.pipeline.memory[s].argument_bytes for s in costs.stages_of(g)) for g in groups]
    comm_bytes, collectives = traffic_of_replica(best, stages)
    if "kernels" in data:
        data["kernels"] = [write(use) for use in kernels_of_replica(best)]
    data.update(
        {
            "mesh": meshes[0],
            **differ,
            "stages": best.shape.stages,
            "groups": best.shape.groups,
            "microbatches": best.shape.microbatches,
            "schedule": best.schedule.name,
            "predicted": {
                # What a host takes to start one program is not what tasks take, which has been counted.
                **{key: value for key, value in data["predicted"].items() if key != "host_s"},
                "step_time_s": simulation.step_time_s,
                "compute_s": busy,
                "comm_s": comm,
                "bubble_s": max(0.0, simulation.step_time_s - busy - comm),
                "peak_bytes": best.peak_bytes,
                "comm_bytes": comm_bytes,
                "collectives": collectives,
                "memory": {
                    "argument_bytes": max(held),
                    "temp_bytes": max(
                        peak - mine for mine, peak in zip(held, simulation.memory_peak_bytes, strict=True)
                    ),
                },
            },
            "search": {"candidates": solution.candidates, "gap": solution.gap, "searched_s": searched_s},
            "alternatives": [write(lost) for lost in solution.alternatives],
        }
    )
    RhinoPlan.attach(module, data)
