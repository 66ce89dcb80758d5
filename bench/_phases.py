"""Where the time of a plan goes: `python -m bench._phases FILE CLUSTER LEVEL [BYTES]` prints seconds by phase as JSON.

Owns the names of the phases. It is a process of its own, started by search_time, and runs what `rhino-auto` runs.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from jaxlib.mlir import ir

from rhino.ir.diagnostics import PassLog
from rhino.ir.import_graph import import_graph
from rhino.passes.pass_manager import PassManager
from rhino.passes.plan.plan_sharding import PlanSharding
from rhino.passes.registry import PassPipeline, build, options_of
from rhino.plan.module import parse_module
from rhino.sharding import Solution


def phases(path: Path, cluster: str, level: str, memory_limit: int = 0) -> dict[str, float]:
    """Seconds by phase, in the order they run.

    parse; inline and clean up; classify the arguments; import the IR as a graph; build the search problem; tie repeated
    structure; solve the programs of all meshes; look at memory and predict; write shardings and report; print.
    """
    found: dict[str, float] = {}
    solutions: list[Solution] = []

    class Watched(PlanSharding):
        def run(self, module: ir.Module, log: PassLog) -> None:
            start = time.perf_counter()
            import_graph(module)  # once more than the pass itself does, only to time it
            found["import"] = time.perf_counter() - start
            solutions.append(self.plan(module, log))

    start = time.perf_counter()
    module = parse_module(path.read_bytes(), str(path))
    found["parse"] = time.perf_counter() - start
    manager = PassManager(module.context)
    options = [("topology", cluster), ("level", level), ("memory-limit", str(memory_limit)), ("stages", "1")]
    auto = build("rhino-auto", options)
    assert isinstance(auto, PassPipeline)
    for part in auto.expand():
        if isinstance(part, PlanSharding):
            part = Watched(**{spec.field: getattr(part, spec.field) for spec in options_of(PlanSharding)})
        manager.add(part)
    timings: dict[str, float] = {}
    for name, seconds in manager.run(module).timings_s:
        timings[name] = timings.get(name, 0.0) + seconds
    start = time.perf_counter()
    str(module)
    printing = time.perf_counter() - start

    (solution,) = solutions
    search = {name.removesuffix("_s"): seconds for name, seconds in solution.phases.items()}
    planning = timings.pop(PlanSharding.name) - found["import"]
    return {
        "parse": found["parse"],
        **timings,
        "import": found["import"],
        **search,
        "write": planning - found["import"] - sum(search.values()),
        "print": printing,
    }


if __name__ == "__main__":
    print(json.dumps(phases(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else 0)))
