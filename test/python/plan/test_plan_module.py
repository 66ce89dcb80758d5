"""`plan_module` verifies what it is given and what it gives back, and nothing in between."""

from __future__ import annotations

import pytest
from jaxlib.mlir import ir

from rhino.errors import RhinoError
from rhino.machine import Cluster
from rhino.passes import pass_manager
from rhino.passes.plan.plan_sharding import PlanSharding
from rhino.plan.module import parse_module, plan_module
from rhino.request import PlanRequest

TEXT = """func.func @main(%x: tensor<64x32xf32> {ROLE}, %w: tensor<32x16xf32>) -> tensor<64x16xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x32xf32>, tensor<32x16xf32>)
    -> tensor<64x16xf32>
  return %0 : tensor<64x16xf32>
}
"""


def request() -> PlanRequest:
    return PlanRequest.of(Cluster.load("dgx-h100:1"), stages=1)


def test_an_attribute_that_is_given_wrongly_is_refused_at_its_place() -> None:
    module = parse_module(TEXT.replace("ROLE", 'rhino.role = "weight"'), "step.mlir")
    with pytest.raises(RhinoError, match=r"-:1:17: rhino.role must be one of .*, got \"weight\""):
        plan_module(module, request())


@pytest.mark.parametrize("wrong", ["attribute", "type"])
def test_a_pass_that_leaves_a_wrong_module_is_found_out(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    plan = PlanSharding.run

    def run(self: PlanSharding, module: ir.Module, log: object) -> None:
        plan(self, module, log)  # type: ignore[arg-type]
        main = next(op for op in module.body.operations if op.operation.name == "func.func")
        if wrong == "attribute":
            main.attributes["rhino.nothing"] = ir.UnitAttr.get(module.context)
        else:
            del main.attributes["function_type"]

    monkeypatch.setattr(PlanSharding, "run", run)
    with pytest.raises(RhinoError, match="rhino.nothing" if wrong == "attribute" else "function_type"):
        plan_module(parse_module(TEXT.replace("ROLE", 'rhino.role = "batch"'), "step.mlir"), request())


def test_passes_are_not_verified_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[ir.Module] = []
    monkeypatch.setattr(pass_manager, "verify", lambda module, log: seen.append(module))
    plan_module(parse_module(TEXT.replace("ROLE", 'rhino.role = "batch"'), "step.mlir"), request())
    assert not seen
