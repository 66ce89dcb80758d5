"""Which errors of one search make way for the other: that there is no such plan, and none besides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rhino.api.plan import Plan
from rhino.dialect.context import make_context, parse_text
from rhino.errors import NothingFits, RhinoError
from rhino.ir.microbatch.one_program import OneProgram
from rhino.machine import Cluster
from rhino.plan.file import plan_data
from rhino.plan.module import plan_module
from rhino.report.html import page
from rhino.report.text import summary
from rhino.request import PlanRequest
from rhino.sharding import Options, Solution, plan_sharding
from rhino.sharding.form_bounds import Form

STEP = (Path(__file__).parents[2] / "plan" / "plan_parallelism.mlir").read_text(encoding="utf-8")
CLUSTER = Cluster.load("dgx-h100:1")
COMPARED = PlanRequest(CLUSTER, stages=-1)
# A pipeline fits in this.
TIGHT = PlanRequest(CLUSTER, memory_limit=400_000)
NO_PROGRAM = NothingFits(
    "memory limit 391 KiB per device cannot be met: the smallest plan found needs 1 MiB; largest: w"
)


def planned(request: PlanRequest, text: str = STEP) -> Plan:
    return plan_module(parse_text(text, make_context()), request).plan


def raising(error: Exception) -> Any:
    def fails(*args: Any, **kwargs: Any) -> None:
        raise error

    return fails


def whole(
    programs: OneProgram, cluster: Cluster, options: Options, progress: Any, begun: Any = None
) -> tuple[Form, Solution]:
    """In place of the search over micro-batches: one program has the whole batch, which does not fit in TIGHT."""
    return Form(1), plan_sharding(programs.whole, cluster, options, progress)


@pytest.mark.parametrize("request_", [COMPARED, TIGHT], ids=["compared", "tight"])
@pytest.mark.parametrize(
    "where",
    [
        "rhino.pipeline.search.planned.simulate",
        "rhino.pipeline.search.planned.make_schedule",
        "rhino.pipeline.search.planned.stage_step",
        "rhino.pipeline.search.sharded.MeshSearch",
        "rhino.ir.microbatch.programs.prepare",
        "rhino.passes.plan.plan_pipeline.write_pipeline",
    ],
)
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RhinoError("a bug of ours"), "a bug of ours|this is a bug"),
        (AssertionError("broken"), "AssertionError: broken"),
    ],
    ids=["rhino-error", "assertion"],
)
def test_an_internal_error_is_never_an_alternative(
    monkeypatch: pytest.MonkeyPatch, request_: PlanRequest, where: str, error: Exception, said: str
) -> None:
    monkeypatch.setattr(where, raising(error))
    if request_ is TIGHT:
        monkeypatch.setattr("rhino.passes.plan.plan_sharding.plan_in_parts", whole)
    elif where.endswith("write_pipeline"):
        monkeypatch.setattr(
            "rhino.passes.plan.plan_parallelism._step_s", lambda plan: 1.0
        )  # a slower one is not written
    with pytest.raises(RhinoError) as caught:
        planned(request_)
    text = f"{caught.value.message} {caught.value.remedy}"
    assert any(part in text for part in said.split("|")), text


def test_a_search_that_finds_no_room_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rhino.passes.plan.plan_pipeline.plan_deeper", raising(NothingFits("no pipeline fits in 3 B")))
    plan = planned(COMPARED)
    assert plan.stages == 1
    (last,) = [a for a in plan.alternatives if a.name == "pipeline"]
    assert (last.why, last.step_time_s, last.peak_bytes) == ("no pipeline fits in 3 B", None, None)


def test_a_slower_pipeline_is_named_and_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rhino.passes.plan.plan_pipeline.write_pipeline", raising(AssertionError("written")))
    plan = planned(COMPARED)
    assert plan.stages == 1
    (last,) = [a for a in plan.alternatives if "stages" in a.name]
    assert last.step_time_s is not None and last.step_time_s >= plan.predicted.step_time_s
    assert last.peak_bytes is not None and last.peak_bytes > 0
    assert last.why.endswith("% slower")


def test_a_plan_says_why_there_is_no_pipeline() -> None:
    plan = planned(COMPARED, STEP.replace('{rhino.role = "batch"}', '{rhino.role = "other"}'))
    assert plan.stages == 1
    why = "cannot be pipelined, because no argument of the step is a batch, which micro-batches are cut from"
    assert plan_data(plan)["alternatives"][-1] == {"name": "pipeline", "why": why}
    assert why in " ".join(summary(plan).split())
    assert why in page(plan)


def test_micro_batches_in_one_program_come_before_a_pipeline() -> None:
    plan = planned(TIGHT)
    assert (plan.stages, plan.microbatches > 1) == (1, True)
    assert f"micro-batches  {plan.microbatches}, one after the other" in summary(plan)


def test_a_pipeline_says_why_it_is_no_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rhino.passes.plan.plan_sharding.plan_in_parts", whole)
    plan = planned(TIGHT)
    assert plan.stages > 1
    said = plan_data(plan)["alternatives"][-1]
    assert said["name"] == "one program" and set(said) == {"name", "why"}
    assert said["why"].startswith(
        "memory limit 391 KiB per device cannot be met on dgx-h100:1: the smallest plan found"
    )
    assert "largest" not in said["why"]
