"""Plans of one model on one cluster: `python -m bench._quality_plan MODULE CLUSTER NAME=FILE ...` writes one file each.

NAME is a level (O1, O2) or an expert; FILE gets the plan as JSON, and the annotated module is put beside it. It is a
process of its own, started by plan_quality, so that one that dies or takes too long loses only what it was at.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from rhino.errors import RhinoError
from rhino.experts import ExpertProgram, consult
from rhino.machine import Cluster
from rhino.passes.plan.plan_sharding import PlanSharding
from rhino.passes.registry import options_of
from rhino.plan.module import parse_module
from rhino.sharding import Options, Solution, plan_sharding


def levels() -> tuple[str, ...]:
    """The levels of search that this version has."""
    (spec,) = (spec for spec in options_of(PlanSharding) if spec.field == "level")
    return tuple(spec.choices)


def found(program: ExpertProgram, cluster: Cluster, level: str) -> tuple[Solution | None, dict[str, Any]]:
    """What the search finds."""
    if level not in levels():
        return None, {"why": f"there is no level {level}", "skipped": True}
    try:
        return plan_sharding(program.graph, cluster, Options(level=level)), {"variant": level, "why": ""}
    except RhinoError as error:
        return None, {"why": str(error)}


def expert(program: ExpertProgram, cluster: Cluster, name: str) -> tuple[Solution | None, dict[str, Any]]:
    """What an expert would do; all of its plans are listed."""
    outcome = consult(name, program.facts, cluster)
    trials = [
        {
            "variant": trial.variant,
            "fits": trial.fits,
            "step_time_s": trial.step_time_s if trial.solution else None,
            "peak_bytes": trial.solution.predicted.memory.peak_bytes if trial.solution else None,
            "why": trial.why,
        }
        for trial in outcome.trials
    ]
    if outcome.best is None:
        return None, {"why": outcome.why, "applies": bool(trials), "trials": trials}
    return outcome.best.solution, {"variant": outcome.best.variant, "why": "", "applies": True, "trials": trials}


def record(program: ExpertProgram, cluster: Cluster, name: str, folder: Path) -> dict[str, Any]:
    """One plan, its prediction, and where its module is."""
    start = time.perf_counter()
    solution, facts = (found if name.startswith("O") else expert)(program, cluster, name)
    data: dict[str, Any] = {"plan": name, **facts, "seconds": round(time.perf_counter() - start, 3)}
    data["cluster"] = {
        "devices": cluster.num_devices,
        "memory_bytes": cluster.device.memory_bytes,
        "target": cluster.device.xla_target,
    }
    if solution is None:
        return data
    predicted = solution.predicted
    buffer = io.BytesIO()
    program.annotated(cluster, solution).operation.write_bytecode(buffer)
    text = buffer.getvalue()
    path = folder / f"{hashlib.sha256(text).hexdigest()[:16]}.mlirbc"
    path.write_bytes(text)
    return data | {
        "mesh": [list(axis) for axis in solution.mesh],
        "module": path.name,
        "gap": solution.gap,
        "predicted": {
            "step_time_s": predicted.step_time_s,
            "compute_s": predicted.compute_s,
            "comm_s": predicted.comm_s,
            "comm_bytes": predicted.comm_bytes,
            "collectives": predicted.collectives,
            "peak_bytes": predicted.memory.peak_bytes,
            "argument_bytes": predicted.memory.argument_bytes,
        },
    }


def main() -> None:
    """Plan what is asked for, the found plans first."""
    source, where, *wanted = sys.argv[1:]
    cluster = Cluster.load(where)
    program = ExpertProgram.of(parse_module(Path(source).read_bytes(), source), where)
    failed = ""
    for entry in wanted:
        name, _, file = entry.partition("=")
        path = Path(file)
        try:
            data = record(program, cluster, name, path.parent)
        except Exception as error:  # a defect in one plan must not cost the others; nothing is kept of it
            traceback.print_exc()
            failed = failed or f"{name}: {type(error).__name__}: {error}"
            continue
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        draft.rename(path)
    if failed:
        sys.exit(failed)


if __name__ == "__main__":
    main()
