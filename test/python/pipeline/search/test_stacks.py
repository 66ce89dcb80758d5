"""Stacked layers, which stages keep row by row: no stage's layout may split the stack."""

from __future__ import annotations

from pathlib import Path

import pytest

from rhino.dialect.context import make_context, parse_text
from rhino.ir.microbatch.programs import SplitPrograms
from rhino.machine import Cluster
from rhino.pipeline.search.options import JointOptions
from rhino.pipeline.search.search import plan_jointly

# Three layers that nothing but their number could be divided by three devices.
STEP = """
func.func @main(
    %w: tensor<3x64x64xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32},
    %x: tensor<32x64xf32> {rhino.role = "batch"}
  ) -> tensor<3x64x64xf32> {
  LAYERS
  %n = stablehlo.concatenate %n0, %n1, %n2, dim = 0 : (tensor<1x64x64xf32>, tensor<1x64x64xf32>, tensor<1x64x64xf32>) -> tensor<3x64x64xf32>
  return %n : tensor<3x64x64xf32>
}
"""  # noqa: E501


def step() -> str:
    x, w = "tensor<32x64xf32>", "tensor<64x64xf32>"
    lines = []
    for i in range(3):
        given = f"%h{i - 1}" if i else "%x"
        lines += [
            f"%r{i} = stablehlo.slice %w [{i}:{i + 1}, 0:64, 0:64] : (tensor<3x64x64xf32>) -> tensor<1x64x64xf32>",
            f"%w{i} = stablehlo.reshape %r{i} : (tensor<1x64x64xf32>) -> {w}",
            f"%h{i} = stablehlo.dot_general {given}, %w{i}, contracting_dims = [1] x [0] : ({x}, {w}) -> {x}",
        ]
    back = "%h2"
    for i in reversed(range(3)):
        given = f"%h{i - 1}" if i else "%x"
        lines += [
            f"%g{i} = stablehlo.dot_general {given}, {back}, contracting_dims = [0] x [0] : ({x}, {x}) -> {w}",
            f"%b{i} = stablehlo.dot_general {back}, %w{i}, contracting_dims = [1] x [1] : ({x}, {w}) -> {x}",
            f"%u{i} = stablehlo.reshape %g{i} : ({w}) -> tensor<1x64x64xf32>",
            f"%n{i} = stablehlo.subtract %r{i}, %u{i} : tensor<1x64x64xf32>",
        ]
        back = f"%b{i}"
    return STEP.replace("LAYERS", "\n  ".join(line for line in lines if not line.startswith("%b0")))


@pytest.mark.parametrize("devices", [6, 5])
def test_a_stack_is_whole(devices: int) -> None:
    """Two stages of three devices; or of three and two."""
    # On devices so slow it would pay to divide the update of all layers.
    data = Cluster.load(Path(__file__).parents[2] / "exec" / "slow_devices.yaml").to_dict()
    data["devices_per_host"] = devices
    programs = SplitPrograms.of(parse_text(step(), make_context()), "O1")
    best = plan_jointly(programs, Cluster.from_dict(data), JointOptions(stages=2, microbatches=1)).best
    solutions = [layout.solution for width, layout in best.layouts.items() if width == 3]
    stack = best.prepared.graph.arguments[0].value
    assert solutions and all(s.dims(stack) == ((), (), ()) for s in solutions)
