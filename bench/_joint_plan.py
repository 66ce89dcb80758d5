"""A part of joint_search, a process of its own: `python -m bench._joint_plan PART MODULE CLUSTER LEVEL OUT STATISTICS`.

PART is search (plan, and write the module in fragments beside OUT), experts (the grid of `rhino.experts.pipelines`) or
compile (MODULE is in fragments; what XLA needs and sends, by device group). OUT gets JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from jaxlib.mlir import ir

from rhino.errors import RhinoError
from rhino.experts.pipelines import PipelineTrial, cheapest, megatron_3d
from rhino.ir.diagnostics import PassLog
from rhino.ir.microbatch.programs import SplitPrograms
from rhino.machine import Cluster
from rhino.passes.pass_manager import PassManager
from rhino.passes.pipelines import Auto
from rhino.passes.plan.plan_pipeline import PlanPipeline
from rhino.pipeline.search.solution import JointSolution
from rhino.plan.module import parse_module

# The published plan of the largest models on 8 hosts of 8: a stage on 4 devices, tensor parallel in each.
_PUBLISHED = {"stages": (16,), "tensor": (4,)}


def read(source: Path) -> Any:
    """The module as `rhino plan` has it when it begins to search."""
    module = parse_module(source.read_text(encoding="utf-8"), source.stem)
    manager = PassManager(module.context)
    for each in takewhile(lambda each: not str(each).startswith("rhino-plan-"), Auto().expand()):
        manager.add(each)
    manager.run(module)
    return module


def search(source: Path, cluster: str, level: str, out: Path, statistics: str) -> dict[str, Any]:
    """What the joint search finds, and what it takes to find it and to write it."""
    begin, cpu = time.perf_counter(), time.process_time()
    module = read(source)
    solutions: list[JointSolution] = []

    class Watched(PlanPipeline):
        def run(self, module: ir.Module, log: PassLog) -> None:
            solutions.append(self.plan(module, log))

    PassManager(module.context).add(Watched(topology=cluster, level=level, statistics=statistics)).run(module)
    (solution,) = solutions
    wall_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
    best = solution.best
    out.with_suffix(".mlir").write_text(str(module), encoding="utf-8")
    return {
        "plan": best.name,
        "mesh": list(best.layout_of(0).mesh),
        "step_time_s": best.step_time_s,
        "peak_bytes": best.peak_bytes,
        "limit_bytes": Cluster.load(cluster).device.plan_bytes,
        "groups_bytes": list(best.simulation.memory_peak_bytes),
        "bubble": best.simulation.bubble_fraction,
        "gap": solution.gap,
        "candidates": solution.candidates,
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "search_s": solution.seconds,
        "phases": solution.phases,
        "alternatives": [
            {"plan": a.name, "step_time_s": a.step_time_s, "peak_bytes": a.peak_bytes, "why": a.why}
            for a in solution.alternatives[:8]
        ],
    }


def experts(source: Path, cluster: str, level: str, out: Path, statistics: str) -> dict[str, Any]:
    """The published shape and Megatron-LM's grid, each with its best number of micro-batches, by the same costs."""
    programs = SplitPrograms.of(read(source), level, statistics)
    where = Cluster.load(cluster)
    parts = [n for n in (64, 128, 256, 512, 1024) if programs.batch % n == 0]
    trials = megatron_3d(programs, where, parts=parts)
    published = [t for t in trials if t.shape.stages in _PUBLISHED["stages"] and t.shape.width in _PUBLISHED["tensor"]]
    return {
        "published": row(cheapest(published)),
        "megatron_3d": row(cheapest(trials)),
        "trials": [row(t) for t in trials],
    }


def row(trial: PipelineTrial | None) -> dict[str, Any] | None:
    """A trial as data."""
    if trial is None:
        return None
    made = trial.candidate
    return {
        "plan": trial.shape.name,
        "fits": trial.fits,
        "why": trial.why,
        "step_time_s": made.step_time_s if made else None,
        "peak_bytes": made.peak_bytes if made else None,
    }


def compiled(source: Path, cluster: str, level: str, out: Path, statistics: str) -> dict[str, Any]:
    """XLA's memory of each device group, and what its devices send in a step."""
    from rhino.runtime import build as build_runtime

    begin = time.perf_counter()
    executable = build_runtime(source.read_text(encoding="utf-8"), target=Cluster.load(cluster).device.xla_target)
    memory = executable.memory_analysis()
    return {
        "compile_s": time.perf_counter() - begin,
        "peak_bytes": memory.peak_bytes,
        "groups_bytes": [group.peak_bytes for group in memory.groups],
        "at": [group.task for group in memory.groups],
        "collectives": [by_kind(rows) for rows in executable.collectives()],
        "transfer_bytes": sum(executable.transfers().values()),
    }


def by_kind(rows: Sequence[Any]) -> dict[str, int]:
    """Bytes that one device sends, by kind of collective."""
    found: dict[str, int] = {}
    for one in rows:
        found[one.kind] = found.get(one.kind, 0) + one.bytes
    return found


PARTS: dict[str, Callable[[Path, str, str, Path, str], dict[str, Any]]] = {
    "search": search,
    "experts": experts,
    "compile": compiled,
}


def main(part: str, source: str, cluster: str, level: str, out: str, statistics: str) -> None:
    """Do the part; what cannot be done says why."""
    path = Path(out)
    try:
        data = PARTS[part](Path(source), cluster, level, path, statistics)
    except RhinoError as error:
        data = {"error": str(error)}
    path.write_text(json.dumps(data), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
