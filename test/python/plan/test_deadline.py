"""One deadline, made once, ends every search of a plan: in one program, in pipelines, in both, and in writing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count
from math import inf
from pathlib import Path
from typing import Any

import pytest
from jaxlib.mlir import ir

from rhino.deadline import NEVER, Deadline
from rhino.dialect import functions
from rhino.dialect.attributes import RhinoMulticast, RhinoPlan
from rhino.dialect.context import make_context, parse_text
from rhino.errors import NothingFits, RhinoError
from rhino.ir.import_graph import import_graph
from rhino.ir.microbatch import programs
from rhino.ir.microbatch.programs import SplitPrograms
from rhino.ir.session import Session
from rhino.machine import Cluster
from rhino.passes.pass_manager import PassManager, PipelineError
from rhino.passes.plan.plan_parallelism import PlanParallelism
from rhino.passes.plan.plan_pipeline import PlanPipeline
from rhino.pipeline.cut.problem import Net, StageOptions, StageProblem, StageUnit
from rhino.pipeline.cut.solve import plan_stages
from rhino.pipeline.search.planned import Planner
from rhino.plan.module import plan_module
from rhino.request import PlanRequest
from rhino.sharding import Options, plan_sharding

STEPS = Path(__file__).parents[2] / "plan"
STEP = (STEPS / "plan_parallelism.mlir").read_text(encoding="utf-8")
CLUSTER = Cluster.load("dgx-h100:1")
OVER = Deadline(at_s=-1.0)
# Of the step, bytes that one program over all devices does not fit in, and a pipeline does.
TIGHT = 400_000


def step() -> ir.Module:
    return parse_text(STEP, make_context())


def named(seen: set[str]) -> Callable[[], float]:
    """A clock that stands still and writes down which of Rhino's modules asked for the time."""

    def clock() -> float:
        frame = sys._getframe(1)
        while frame.f_globals["__name__"] == "rhino.deadline" and frame.f_back is not None:
            frame = frame.f_back
        seen.add(frame.f_globals["__name__"].removeprefix("rhino."))
        return 0.0

    return clock


ONE_PROGRAM = {"sharding.planner", "sharding.descent"}
PIPELINE = {
    "ir.microbatch.programs",  # how long cutting takes, by which time is left for writing
    "pipeline.search.search",
    "pipeline.search.pipeline",  # the integer program of the cut
    "ir.pipeline.transfers",
    *ONE_PROGRAM,
}


@pytest.mark.parametrize(
    ("request_", "asked"),
    [
        (PlanRequest(CLUSTER, stages=1), {*ONE_PROGRAM, "sharding.padding"}),
        (PlanRequest(CLUSTER, stages=2), PIPELINE),
        # The pipeline is slower, and is not written.
        (PlanRequest(CLUSTER, stages=-1), {*PIPELINE, "passes.plan.plan_parallelism"} - {"ir.pipeline.transfers"}),
        (PlanRequest(CLUSTER, stages=2, memory_limit=TIGHT), {*PIPELINE, "sharding.limit", "pipeline.search.planned"}),
        (PlanRequest(CLUSTER, memory_limit=TIGHT), {*ONE_PROGRAM, "sharding.parts"}),
    ],
    ids=["one-program", "pipeline", "compare", "tight pipeline", "micro-batches"],
)
def test_every_search_looks_at_the_one_clock(request_: PlanRequest, asked: set[str]) -> None:
    seen: set[str] = set()
    plan_module(step(), request_, deadline=Deadline(1.0, 1.0, named(seen)))
    assert asked <= seen


def test_without_a_budget_nobody_looks_at_the_clock() -> None:
    def clock() -> float:
        raise AssertionError("no deadline, no clock")

    manager = PassManager((module := step()).context)
    manager.add(PlanParallelism(topology="dgx-h100:1")).run(module, session=Session(deadline=Deadline(clock=clock)))


def test_one_program_takes_the_first_mesh() -> None:
    graph = import_graph(step())
    assert plan_sharding(graph, CLUSTER, Options()).candidates > 1
    assert plan_sharding(graph, CLUSTER, Options(deadline=OVER)).candidates == 1
    small = plan_sharding(graph, CLUSTER, Options(level="O2", deadline=OVER))
    assert small.candidates == 1


def test_what_has_found_nothing_gives_up_only_where_something_else_follows() -> None:
    graph = import_graph(step())
    with pytest.raises(NothingFits, match=r"cannot be met on dgx-h100:1: the smallest plan found"):
        plan_sharding(graph, CLUSTER, Options(memory_limit=TIGHT, deadline=OVER))
    with pytest.raises(NothingFits, match=r"cannot be met on dgx-h100:1 in the time budget: the smallest plan found"):
        plan_sharding(graph, CLUSTER, Options(memory_limit=TIGHT, deadline=OVER.with_plan()))


def test_the_cut_runs_no_integer_program() -> None:
    units = tuple(StageUnit(1.0, 2.0, 0, 0) for _ in range(6))
    nets = tuple(Net(u, (u + 1,), 1) for u in range(5))
    problem = StageProblem(units, tuple((u, u + 1) for u in range(5)), nets, 2, 4)
    assert plan_stages(problem, StageOptions(ideals=1, worth=0.0)).method == "integer"
    assert plan_stages(problem, StageOptions(ideals=1, worth=0.0, time_limit_s=0.0)).method == "order"


def test_a_step_that_is_refused_is_not_cut_in_other_ways() -> None:
    text = (STEPS / "plan_pipeline_single.mlir").read_text(encoding="utf-8")
    assert len(SplitPrograms.of(parse_text(text, make_context()), "O1").refused) > 1
    assert len(SplitPrograms.of(parse_text(text, make_context()), "O1", deadline=OVER).refused) == 1


def schedulers(module: ir.Module) -> set[str]:
    ops = [op for f in functions.all_functions(module) for op in functions.walk(f) if op.name == "mpmd.transfer"]
    return {(RhinoMulticast.of(op) or {})["scheduler"] for op in ops}


@pytest.mark.parametrize(("deadline", "scheduler"), [(NEVER, "optimal"), (OVER, "load-balance")])
def test_a_late_pipeline_is_written_with_transfers_by_rule(deadline: Deadline, scheduler: str) -> None:
    module = step()
    manager = PassManager(module.context).add(PlanPipeline(topology="dgx-h100:1", stages=2))
    manager.run(module, session=Session(deadline=deadline))
    assert schedulers(module) == {scheduler}
    assert (RhinoPlan.of(module) or {})["search"]["candidates"] >= 1


def test_of_both_ways_each_has_its_part_of_the_time() -> None:
    # Every look at the clock takes a second.
    ticks = count()
    module = step()
    manager = PassManager(module.context).add(PlanParallelism(topology="dgx-h100:1", pipelines="compare", budget=12))
    manager.run(module, session=Session(deadline=Deadline(clock=lambda: float(next(ticks)))))
    found = RhinoPlan.of(module) or {}
    assert found["stages"] == 1 and found["search"]["candidates"] < 3


def test_time_is_left_for_writing_and_not_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def taking(seconds: float, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            now[0] += seconds
            return function(*args)

        return run

    # Cutting the step takes a second each time, and planning a pipeline.
    monkeypatch.setattr(programs, "import_graph", taking(1.0, import_graph))
    monkeypatch.setattr(Planner, "planned", taking(1.0, Planner.planned))

    def candidates(budget: float) -> int:
        now[0] = 0.0
        module = step()
        given = PlanPipeline(topology="dgx-h100:1", budget=budget)
        PassManager(module.context).add(given).run(module, session=Session(deadline=Deadline(clock=lambda: now[0])))
        return int((RhinoPlan.of(module) or {})["search"]["candidates"])

    # The whole search takes 12 s. It is cut short where little is left to write in, and only there.
    assert candidates(8.0) < candidates(10.0) < candidates(13.0) == candidates(1e6)


def test_a_budget_is_a_time() -> None:
    module = step()
    with pytest.raises(PipelineError, match=r"budget -1\.0 is not a time in seconds"):
        PassManager(module.context).add(PlanParallelism(topology="dgx-h100:1", budget=-1.0)).run(module)


def test_deadlines() -> None:
    now = [10.0]
    never = Deadline(clock=lambda: now[0])
    soon = never.sooner(4.0)
    assert never.sooner(None) is never.sooner(0.0) is never
    assert (soon.at_s, soon.hopeless_s) == (14.0, inf)
    assert soon.sooner(9.0).at_s == 14.0 and soon.sooner(1.0).at_s == 11.0
    assert soon.at_most(60.0) == 4.0 and soon.at_most(1.0) == 1.0 and soon.at_most(60.0, found=False) == 60.0
    assert soon.half(found=True) == Deadline(12.0, 12.0, soon.clock)
    assert soon.half(found=False) == Deadline(14.0, 12.0, soon.clock)
    assert soon.before(1.0).at_s == 13.0 and soon.before(100.0).at_s == 12.0
    assert soon.before(100.0, found=True).at_s == -86.0
    assert soon.with_plan().before(1.0) == Deadline(13.0, 13.0, soon.clock)
    assert not soon.over()
    now[0] = 14.5
    assert soon.over() and not soon.over(found=False) and soon.with_plan().over(found=False)
    assert not soon.with_plan().patient().over(found=False)
    assert soon.at_most(60.0) == 0.0 and soon.before(1.0) == soon
    assert not never.over() and never.half(True) is never and never.before(3.0) is never
    with pytest.raises(RhinoError, match=r"budget -2\.0 is not a time"):
        never.sooner(-2.0)
