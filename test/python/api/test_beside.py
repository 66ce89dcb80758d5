"""What is asked of the search for a call beside a pipeline, in which order, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from rhino.api.beside import check_stays, plan_beside
from rhino.api.plan import Plan
from rhino.api.stage_pins import Pin
from rhino.errors import RhinoError, RhinoWarning
from rhino.machine import Cluster
from rhino.plan import Predicted, Tensor
from rhino.plan.pipeline import StagePiece
from rhino.request import PlanRequest

PIPELINE = Plan(
    level="O1",
    cluster="cpu:1",
    mesh=(("x", 4),),
    stages=2,
    microbatches=4,
    schedule="1f1b",
    arguments=(),
    outputs=(),
    predicted=Predicted(1.0, 1.0, 0.0, 0.0, 1, {}),
    groups=2,
)
REQUEST = PlanRequest(Cluster.load("cpu:1"), mesh="8", stages=2, microbatches=3)
STATE = Tensor("state.w", "param", (4,), "f32", ((),), stages=(1,))
PIN = Pin(STATE, (StagePiece(1, 1, ((),), (("x", 4),), (), (4,)),))
Asked = list[tuple[int, str, int, bool]]


def _searching(takes: Callable[[PlanRequest], bool]) -> tuple[Asked, Any]:
    asked: Asked = []

    def search(request: PlanRequest, pins: Any) -> Any:
        asked.append((request.stages, request.mesh, request.microbatches, request.fewer))
        if not takes(request):
            raise RhinoError(f"{request.stages} stages cannot be", "take others")
        return request

    return asked, search


def test_the_same_pipeline_is_asked_for_first() -> None:
    asked, search = _searching(lambda request: True)
    found: Any = plan_beside(PIPELINE, REQUEST, {}, search, "train", True)
    assert asked == [(2, "x=4", 4, True)]
    assert found.schedule == "1f1b"


def test_another_function_may_be_one_program(recwarn: pytest.WarningsRecorder) -> None:
    asked, search = _searching(lambda request: request.stages == 1)
    plan_beside(PIPELINE, REQUEST, {}, search, "norm", False)
    assert asked == [(2, "x=4", 4, True), (2, "", 4, True), (1, "", 0, False)]
    assert not recwarn.list
    with pytest.raises(RhinoError, match="1 stages cannot be; take others"):
        plan_beside(PIPELINE, REQUEST, {}, _searching(lambda request: False)[1], "norm", False)


def test_one_program_for_the_step_itself_is_worth_a_warning() -> None:
    with pytest.warns(RhinoWarning, match="train with these shapes is one program .*: 2 stages cannot be; .*pad"):
        plan_beside(PIPELINE, REQUEST, {}, _searching(lambda request: request.stages == 1)[1], "train", True)
    with pytest.raises(RhinoError, match=r"no pipeline of 2 stages .* \(1 stages cannot be\); pad the batch"):
        plan_beside(PIPELINE, REQUEST, {}, _searching(lambda request: False)[1], "train", True)


def test_replicas_that_do_not_divide_the_batch_become_one_over_their_devices() -> None:
    replicated = replace(PIPELINE, mesh=(("replica", 2), ("x", 2)))
    asked, search = _searching(lambda request: request.stages == 1)
    plan_beside(replicated, REQUEST, {}, search, "norm", False)
    assert [mesh for _, mesh, *_ in asked] == ["x=2", "replicas=2,x=2", "", ""]


def test_stages_of_several_widths_keep_their_meshes() -> None:
    uneven = replace(PIPELINE, meshes=((("x", 3),), (("x", 3),), (("x", 2),)))
    asked, search = _searching(lambda request: True)
    plan_beside(uneven, REQUEST, {}, search, "train", True)
    assert asked == [(2, "x=3+x=2", 4, True)]


def test_pins_are_given_up_where_nothing_keeps_them_but_not_over_processes() -> None:
    tried: list[tuple[int, bool]] = []

    def search(request: PlanRequest, pins: Any) -> Any:
        tried.append((request.stages, bool(pins)))
        if pins or request.stages > 1:
            raise RhinoError("no stages leave it")
        return replace(PIPELINE, arguments=(replace(STATE, stages=()),))

    plan_beside(PIPELINE, REQUEST, {0: PIN}, search, "norm", False)
    assert tried == [(2, True), (2, False), (2, False), (1, False)]
    tried.clear()
    with pytest.raises(RhinoError, match="leaves the state on the processes that have it: no stages leave it"):
        plan_beside(PIPELINE, REQUEST, {0: PIN}, search, "train", True, must_stay=True)
    assert tried == [(2, True)]


def test_state_on_other_processes_cannot_move() -> None:
    norm: Any = SimpleNamespace(name="norm")
    elsewhere = replace(PIPELINE, stages=1, groups=1, arguments=(replace(STATE, stages=()),))
    check_stays(norm, elsewhere, {})
    with pytest.raises(RhinoError, match=r"norm would take .* on all devices, but .* is on stages 1, which"):
        check_stays(norm, elsewhere, {0: PIN})
