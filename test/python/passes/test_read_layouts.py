"""What a plan is in a module, read back: the same decisions, so the same prediction, to the last bit."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

import jax
import pytest
from jaxlib.mlir import ir

from examples.export import lower
from rhino.dialect import functions, sdy
from rhino.dialect.attributes import RhinoConstraint
from rhino.dialect.context import make_context, parse_text
from rhino.ir.import_graph import import_graph, number_program
from rhino.ir.meshes import given_mesh
from rhino.ir.read_layouts import read_layouts
from rhino.ir.write_layouts import annotate
from rhino.machine import Cluster
from rhino.passes.pass_manager import PassManager
from rhino.sharding import Options, Solution, plan_sharding
from rhino.sharding.estimate import estimate_plan
from rhino.sharding.replay import UnreadableError

NORMALISE = "builtin.module(rhino-inline,symbol-dce,canonicalize,rhino-classify-args)"
# Fast links, so that much is split in many ways; no all-reduce fused with scattering, so that results go through stops.
CLUSTER = Cluster.load("p3.16xlarge:2")


def program_of(name: str, batch: int = 64, **changes: Any) -> ir.Module:
    model = importlib.import_module(f"examples.models.{name}")
    config = dataclasses.replace(model.PRESETS["tiny"], **changes)
    init_fn, train_step = model.make_train_step(config)
    state = jax.eval_shape(init_fn, jax.random.key(0, impl="unsafe_rbg"))
    module = parse_text(str(lower(train_step, state, model.example_batch(config, batch))), make_context())
    PassManager.parse(NORMALISE, module.context).run(module)
    return module


def planned(module: ir.Module, **options: Any) -> Solution:
    graph = import_graph(module)
    found = plan_sharding(graph, CLUSTER, Options(**options))
    annotate(module, graph, found)
    return found


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        pytest.param("gpt", {"scan": True, "remat": True}, marks=pytest.mark.long),
        pytest.param("moe", {"routing": "sort"}, marks=pytest.mark.long),
        pytest.param("t5", {"scan": True}, marks=pytest.mark.long),
        ("lstm", {}),
        pytest.param("unet", {}, marks=pytest.mark.long),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_planned_model_is_estimated_as_it_was_predicted(name: str, changes: dict[str, Any]) -> None:
    module = program_of(name, **changes)
    found = planned(module)
    assert found.predicted.comm_bytes
    again = estimate_plan(*read_layouts(module), CLUSTER, given_mesh(module))
    assert again.predicted == found.predicted


CONSTRAINED = """
module {
  sdy.mesh @mesh = <["x"=16]>
  func.func @main(%x: tensor<4096x4096xf32>, %w: tensor<4096x4096xf32>) -> tensor<4096x4096xf32> {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4096x4096xf32>, tensor<4096x4096xf32>) -> tensor<4096x4096xf32>
    %1 = sdy.sharding_constraint %0 <@mesh, [{}, {"x"}]> : tensor<4096x4096xf32>
    %2 = stablehlo.dot_general %1, %w, contracting_dims = [0] x [0] : (tensor<4096x4096xf32>, tensor<4096x4096xf32>) -> tensor<4096x4096xf32>
    return %2 : tensor<4096x4096xf32>
  }
}
"""  # noqa: E501


def test_constraints_of_the_program_are_told_from_those_of_the_plan() -> None:
    module = parse_text(CONSTRAINED, make_context())
    found = planned(module, mesh=(16,), axes=("x",))
    main = functions.find(module, "main")
    constraints = [op for op in number_program(main)[1] if op.name == "sdy.sharding_constraint"]
    assert [RhinoConstraint.of(op) for op in constraints].count("given") == 1
    graph, written = read_layouts(module)
    assert [op.name for op in graph.ops].count("sdy.sharding_constraint") == 1
    assert estimate_plan(graph, written, CLUSTER, given_mesh(module)).predicted == found.predicted


def test_a_plan_that_was_changed_is_not_taken_for_one() -> None:
    module = program_of("mlp")
    planned(module, mesh=(16,))
    main = functions.find(module, "main")
    added = next(op for op in number_program(main)[1] if op.name == "stablehlo.add" and sdy.SHARDING in op.attributes)
    rank = len(ir.RankedTensorType(added.results[0].type).shape)
    was = sdy.dims_of(sdy.results_of(added)[0])
    other = ((),) * rank if any(was) else (("x",), *((),) * (rank - 1))
    given = sdy.tensor_sharding(module.context, "mesh", other)
    added.attributes[sdy.SHARDING] = sdy.per_value([given], module.context)
    with pytest.raises(UnreadableError, match="laid out otherwise than what it is combined with"):
        estimate_plan(*read_layouts(module), CLUSTER, given_mesh(module))
