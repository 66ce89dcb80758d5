"""A session hands passes the cluster as an object: text names one only where a user wrote it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jaxlib.mlir import ir

from rhino.dialect.attributes import RhinoCluster, RhinoPlan
from rhino.dialect.context import make_context, parse_text
from rhino.ir.session import Session
from rhino.machine import Cluster
from rhino.passes.pass_manager import PassManager, PipelineError
from rhino.passes.plan.plan_sharding import PlanSharding
from rhino.plan.module import plan_module
from rhino.request import PlanRequest

STEP = (Path(__file__).parents[2] / "plan" / "plan_parallelism.mlir").read_text(encoding="utf-8")
PRESET = Cluster.load("dgx-h100:1")
# No preset, and in no file.
SLOW = replace(PRESET, device=replace(PRESET.device, memory_bytes=PRESET.device.memory_bytes // 2))


def step() -> ir.Module:
    return parse_text(STEP, make_context())


def step_s(module: ir.Module) -> float:
    return float((RhinoPlan.of(module) or {})["predicted"]["step_time_s"])


@pytest.mark.parametrize("stages", [0, 1, 2, -1])
def test_planning_reads_no_cluster_by_name_and_writes_no_file(monkeypatch: pytest.MonkeyPatch, stages: int) -> None:
    def refused(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("the cluster is an object already")

    monkeypatch.setattr(Cluster, "load", refused)
    monkeypatch.setattr(Cluster, "save", refused)
    monkeypatch.setattr("tempfile.mkdtemp", refused)
    module = step()
    plan = plan_module(module, PlanRequest(SLOW, stages=stages)).plan
    assert plan.cluster == SLOW.name
    assert (RhinoCluster.of(module) or {})["name"] == SLOW.name


def test_what_a_user_names_goes_before_the_sessions_cluster() -> None:
    named, given = step(), step()
    session = Session(Cluster.load("p3.16xlarge:1"))
    PassManager(named.context).add(PlanSharding(topology="dgx-h100:1")).run(named, session=session)
    PassManager(given.context).add(PlanSharding()).run(given, session=session)
    assert (RhinoCluster.of(named) or {})["name"] == "dgx-h100:1"
    assert (RhinoCluster.of(given) or {})["name"] == "p3.16xlarge:1"
    assert step_s(named) != step_s(given)


def test_without_either_the_pass_asks_for_one() -> None:
    module = step()
    with pytest.raises(PipelineError, match="'rhino-plan-sharding' needs a topology"):
        PassManager(module.context).add(PlanSharding()).run(module)
