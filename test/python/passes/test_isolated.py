"""C++ passes in a process of their own: they may end it, and otherwise do what they do in this one."""

from __future__ import annotations

import pytest
from jaxlib.mlir import ir

from rhino.dialect.context import make_context, parse_text
from rhino.passes import guards
from rhino.passes.pass_manager import PassManager, PipelineError

MESH = 'sdy.mesh @mesh = <["x"=2]>\n'
# Each device has half of every row, and a gather that is not of whole rows.
GATHER = (
    MESH
    + """func.func @main(%a: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, %i: tensor<3x1xi32>)
    -> tensor<3x2xf32> {
  %0 = "stablehlo.gather"(%a, %i) <{
    dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0],
      index_vector_dim = 1>,
    slice_sizes = array<i64: 1, 2>}> : (tensor<8x4xf32>, tensor<3x1xi32>) -> tensor<3x2xf32>
  return %0 : tensor<3x2xf32>
}
"""
)
HALVES = '{sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}'


def _module(operation: str) -> ir.Module:
    text = f"func.func @main(%a: tensor<8xf32> {HALVES}) -> (tensor<8xf32> {HALVES}) {{\n  {operation}\n"
    return parse_text(MESH + text + "  return %0 : tensor<8xf32>\n}\n", make_context())


def test_an_abort_is_an_error_and_the_module_stays_as_it_was() -> None:
    module = parse_text(GATHER, make_context())
    before = str(module)
    with pytest.raises(PipelineError) as caught:
        PassManager(module.context).add("sdy-convert-global-to-local").run(module)
    expected = "-:2:1: error: 'sdy-convert-global-to-local': C++ code ended the process (SIGABRT): Check failed: "
    assert str(caught.value).startswith(expected)
    assert caught.value.remedy.startswith("run before it what precedes it in Shardy's own pipelines")
    assert str(module) == before


def test_the_result_is_that_of_this_process() -> None:
    printed = []
    for isolate in (True, False):
        on = '{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}]>]>}'
        module = _module(f"%0 = stablehlo.negate %a {on} : tensor<8xf32>")
        PassManager(module.context, isolate=isolate).add("sdy-convert-global-to-local").run(module)
        printed.append(module.operation.get_asm(enable_debug_info=True))
    assert "stablehlo.negate %arg0" in printed[0] and "tensor<4xf32>" in printed[0]
    assert printed[0] == printed[1]


def test_an_error_of_the_pass_keeps_its_place() -> None:
    module = _module("%0 = stablehlo.reverse %a, dims = [0] : tensor<8xf32>")
    with pytest.raises(PipelineError, match=r"^-:3:8: error: 'stablehlo.reverse' op inferred type"):
        PassManager(module.context).add("sdy-convert-global-to-local").run(module)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("cse", False),
        ("func.func(sdy-insert-explicit-reshards{enable-full-version=true})", True),
        ("sdy-export-pipeline", False),
        ("sdy-export-pipeline{enable-insert-explicit-collectives=true}", True),
        ("sdy-basic-propagate{keep-sharding-rules=true}", False),
        ("sdy-basic-propagate{debug-sharding-origins=true}", True),
        ("sdy-basic-propagate{keep-sharding-rules=true debug-propagation-edge-sharding=true}", True),
        ("sdy-convert-global-to-local", True),
        ("func.func(sdy-some-undocumented-pass)", True),
    ],
)
def test_which_passes_have_a_process_of_their_own(step: str, expected: bool) -> None:
    assert guards.may_end_the_process(step) == expected
