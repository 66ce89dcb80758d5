"""One case of by_hand: `python -m bench._by_hand_wishes MODULE CLUSTER LEVEL SECONDS OUT [WISH ...]`.

Plans with no flags and with every wish, one after the other, and writes OUT as JSON. After SECONDS the wish that is
being planned is ended and no other is begun; those say so.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from rhino.errors import RhinoError
from rhino.experts import ExpertProgram, consult, names
from rhino.machine import Cluster
from rhino.pipeline.schedule import SCHEDULES
from rhino.plan.module import parse_module, plan_module
from rhino.request import PlanRequest
from rhino.sharding.meshes import mesh_name, mesh_shapes, named

_STAGES = (1, 2, 4, 8, 16, 32)
_PARTS = (2, 4, 8, 16, 32, 64, 128)
# Micro-batches of a pipeline, for each of its stages.
_DEPTHS = (1, 2, 4, 8)
Row = dict[str, Any]
# Why a wish was not planned, for want of time.
LATE = "not planned: the time was over"


class Over(BaseException):
    """The time is over. No `Exception`, which the planner may catch."""


class Wishes:
    """The plans of one program on one cluster."""

    def __init__(self, source: Path, cluster: str, level: str) -> None:
        self.source, self.level = source, level
        self.text, self.where = source.read_bytes(), Cluster.load(cluster)

    def planned(self, **flags: Any) -> Row:
        """What planning with these flags gives."""
        module = parse_module(self.text, self.source.stem)
        plan = plan_module(module, PlanRequest.of(self.where, level=self.level, **flags)).plan
        stages = f"{plan.stages} stages, " if plan.stages > 1 else ""
        parts = f", {plan.microbatches} micro-batches" if plan.microbatches > 1 else ""
        return {
            "plan": f"{stages}{mesh_name(tuple(plan.mesh))}{parts}{f', {plan.schedule}' if plan.stages > 1 else ''}",
            "step_time_s": plan.predicted.step_time_s,
            "peak_bytes": plan.predicted.peak_bytes,
            "stages": plan.stages,
            "microbatches": plan.microbatches,
        }

    def expert(self, name: str) -> Row:
        """What an expert would do."""
        program = ExpertProgram.of(parse_module(self.text, self.source.stem), self.where.name)
        outcome = consult(name, program.facts, self.where)
        if outcome.best is None or outcome.best.solution is None:
            return {"why": outcome.why}
        predicted = outcome.best.solution.predicted
        return {
            "plan": outcome.best.variant,
            "step_time_s": predicted.step_time_s,
            "peak_bytes": predicted.memory.peak_bytes,
        }

    def all(self) -> Iterator[tuple[str, Callable[[], Row]]]:
        """Every wish that does not follow from others, by name, the quickest to plan first."""
        for shape in mesh_shapes(self.where, "O2"):
            yield f"--mesh {mesh_name(named(shape))}", partial(self.planned, mesh=shape, stages=1)
        for name in names():
            yield f"expert {name}", partial(self.expert, name)
        for remat in ("keep", "none"):
            yield f"--remat {remat}", partial(self.planned, remat=remat)
        for parts in _PARTS:
            flags: dict[str, Any] = {"stages": 1, "microbatches": parts}
            yield f"--stages 1 --microbatches {parts}", partial(self.planned, **flags)
        for stages in _STAGES:
            if stages <= self.where.num_devices:
                yield f"--stages {stages}", partial(self.planned, stages=stages)
        for stages in _STAGES[1:]:
            for depth in _DEPTHS:
                if stages <= self.where.num_devices:
                    flags = {"stages": stages, "microbatches": depth * stages}
                    wish = f"--stages {stages} --microbatches {depth * stages}"
                    yield wish, partial(self.planned, **flags)

    def schedules(self, best: Row) -> Iterator[tuple[str, Callable[[], Row]]]:
        """Every schedule of the fastest pipeline."""
        for schedule in SCHEDULES:
            flags = {"stages": best["stages"], "microbatches": best["microbatches"], "schedule": schedule}
            wish = " ".join(f"--{name} {value}" for name, value in flags.items())
            yield wish, partial(self.planned, **flags)


def timed(work: Callable[[], Row], seconds: float = 0.0) -> Row:
    """What it gives, or why it gives nothing, and the seconds of the processor it took.

    Args:
      seconds: after which it is ended, when it comes back from a call of another library; 0 for no end.
    """

    def over(*_: object) -> None:
        raise Over

    begin, before = time.process_time(), signal.signal(signal.SIGALRM, over)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        row = work()
    except RhinoError as error:
        row = {"why": error.message}
    except Over:
        row = {"why": LATE}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return {**row, "seconds": time.process_time() - begin}


def main(source: str, cluster: str, level: str, seconds: str, out: str, *only: str) -> None:
    """Plan all and write it down."""
    wishes, end = Wishes(Path(source), cluster, level), time.monotonic() + float(seconds)
    found: dict[str, Any] = {"default": timed(wishes.planned), "wishes": []}

    def wish_for(some: Iterator[tuple[str, Callable[[], Row]]]) -> None:
        for name, work in some:
            if only and not any(text in name for text in only):
                continue
            left = end - time.monotonic()
            found["wishes"].append({"wish": name, **(timed(work, left) if left > 0 else {"why": LATE})})

    wish_for(wishes.all())
    pipelines = [row for row in found["wishes"] if row.get("stages", 1) > 1]
    if pipelines:
        wish_for(wishes.schedules(min(pipelines, key=lambda row: float(row["step_time_s"]))))
    Path(out).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
