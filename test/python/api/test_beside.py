"""What is asked of the search for a call beside a pipeline, in which order, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from rhino.api_beside import check_stays, plan_beside
from rhino.api_trace import Leaf
from rhino.cluster import Cluster
from rhino.errors import RhinoError, RhinoWarning
from rhino.plan import Plan, Predicted, Tensor
from rhino.plan_module import Request

PIPELINE = Plan("O1", "cpu:1", (("x", 4),), 2, 4, "1f1b", (), (), Predicted(), groups=2)
REQUEST = Request(Cluster.load("cpu:1"), mesh="8", stages=2, microbatches=3)
Asked = list[tuple[int, str, int, bool]]


def _searching(takes: Callable[[Request], bool]) -> tuple[Asked, Any]:
    asked: Asked = []

    def search(request: Request) -> Any:
        asked.append((request.stages, request.mesh, request.microbatches, request.fewer))
        if not takes(request):
            raise RhinoError(f"{request.stages} stages cannot be", "take others")
        return request

    return asked, search


def test_the_same_pipeline_is_asked_for_first() -> None:
    asked, search = _searching(lambda request: True)
    found: Any = plan_beside(PIPELINE, REQUEST, search, "train")
    assert asked == [(2, "4", 4, True)]
    assert found.schedule == "1f1b"


def test_another_function_may_be_one_program(recwarn: pytest.WarningsRecorder) -> None:
    asked, search = _searching(lambda request: request.stages == 1)
    plan_beside(PIPELINE, REQUEST, search, "")
    assert asked == [(2, "4", 4, True), (2, "", 4, True), (1, "", 0, False)]
    assert not recwarn.list
    with pytest.raises(RhinoError, match="1 stages cannot be; take others"):
        plan_beside(PIPELINE, REQUEST, _searching(lambda request: False)[1], "")


def test_one_program_for_the_step_itself_is_worth_a_warning() -> None:
    with pytest.warns(RhinoWarning, match="train with these shapes is one program .*: 2 stages cannot be; .*pad"):
        plan_beside(PIPELINE, REQUEST, _searching(lambda request: request.stages == 1)[1], "train")
    with pytest.raises(RhinoError, match=r"no pipeline of 2 stages .* \(1 stages cannot be\); pad the batch"):
        plan_beside(PIPELINE, REQUEST, _searching(lambda request: False)[1], "train")


def test_state_on_other_processes_cannot_move() -> None:
    leaf = Leaf("params['w']", "params", ("['w']",), jax.ShapeDtypeStruct((4,), "float32"))
    state = Leaf("state.params['w']", "state", (".params", "['w']"), leaf.aval)
    here, there = SimpleNamespace(name="norm", leaves=(leaf,)), SimpleNamespace(leaves=(state,))

    def with_argument(stages: tuple[int, ...]) -> Plan:
        return replace(PIPELINE, arguments=(Tensor(state.name, "param", (4,), "f32", ((),), stages=stages),))

    check_stays(here, with_argument((1,)), there, with_argument((1,)))  # type: ignore[arg-type]
    with pytest.raises(RhinoError, match=r"norm would take .* on all devices, but .* is on stages 1, which"):
        check_stays(here, with_argument(()), there, with_argument((1,)))  # type: ignore[arg-type]
