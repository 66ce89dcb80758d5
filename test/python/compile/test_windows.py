"""Windows over one tensor that fill differently outside of it give on 8 devices what they give on one."""

from __future__ import annotations

import numpy as np
import pytest

from rhino.compile import compile_module

MODULE = """
sdy.mesh @mesh = <["x"=8]>
func.func @main(%x: tensor<1x16x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {}]>},
                %p: tensor<f32>, %q: tensor<f32>, %w: tensor<3x4x4xf32>)
    -> (tensor<1x16x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {}]>},
        tensor<1x16x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {}]>}) {
  %inf = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  BODY
  return %0, %1 : tensor<1x16x4xf32>, tensor<1x16x4xf32>
}
"""
SHARDED = 'sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}, {}]>]>'


def pool(name: str, reducer: str, start: str) -> str:
    return f"""{name} = "stablehlo.reduce_window"(%x, {start}) ({{
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %c = stablehlo.{reducer} %a, %b : tensor<f32>
      stablehlo.return %c : tensor<f32>
    }}) {{window_dimensions = array<i64: 1, 3, 1>, padding = dense<[[0, 0], [1, 1], [0, 0]]> : tensor<3x2xi64>,
        {SHARDED}}}
      : (tensor<1x16x4xf32>, tensor<f32>) -> tensor<1x16x4xf32>
"""


def pad(name: str, value: str) -> str:
    return f"""{name} = stablehlo.pad %x, {value}, low = [0, -3, 0], high = [0, 3, 0], interior = [0, 0, 0]
      {{{SHARDED}}} : (tensor<1x16x4xf32>, tensor<f32>) -> tensor<1x16x4xf32>
"""


def convolution(name: str) -> str:
    return f"""{name} = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f],
      window = {{stride = [1], pad = [[1, 1]]}}
      {{batch_group_count = 1 : i64, feature_group_count = 1 : i64, {SHARDED}}}
      : (tensor<1x16x4xf32>, tensor<3x4x4xf32>) -> tensor<1x16x4xf32>
"""


@pytest.mark.parametrize(
    "body",
    [
        pool("%0", "maximum", "%inf") + pool("%1", "add", "%zero"),
        pool("%0", "add", "%zero") + pool("%1", "maximum", "%inf"),
        pool("%0", "maximum", "%inf") + convolution("%1"),
        pad("%0", "%p") + pad("%1", "%q"),
    ],
    ids=["maximum, sum", "sum, maximum", "maximum, convolution", "two paddings"],
)
def test_windows_fill_with_their_own(body: str) -> None:
    text = MODULE.replace("BODY", body)
    random = np.random.default_rng(0)
    given = [-1 - random.random((1, 16, 4), np.float32), np.float32(2), np.float32(3), np.ones((3, 4, 4), np.float32)]
    alone = compile_module(text.replace('"x"=8', '"x"=1'))
    for got, want in zip(compile_module(text)(*given), alone(*given), strict=True):
        np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-6)


def test_windows_over_complex_numbers_are_compiled() -> None:
    """Constants of complex numbers are none that the bindings can read."""
    text = """
      sdy.mesh @mesh = <["x"=8]>
      func.func @main(%x: tensor<16xcomplex<f32>> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>})
          -> (tensor<18xcomplex<f32>>, tensor<18xcomplex<f32>>) {
        %zero = stablehlo.constant dense<(0.0, 0.0)> : tensor<complex<f32>>
        %one = stablehlo.constant dense<(1.0, 0.0)> : tensor<complex<f32>>
        %0 = stablehlo.pad %x, %zero, low = [1], high = [1], interior = [0]
          : (tensor<16xcomplex<f32>>, tensor<complex<f32>>) -> tensor<18xcomplex<f32>>
        %1 = stablehlo.pad %x, %one, low = [1], high = [1], interior = [0]
          : (tensor<16xcomplex<f32>>, tensor<complex<f32>>) -> tensor<18xcomplex<f32>>
        return %0, %1 : tensor<18xcomplex<f32>>, tensor<18xcomplex<f32>>
      }
    """
    x = np.arange(16) * np.complex64(1 + 2j)
    zeros, ones = compile_module(text)(x)
    np.testing.assert_array_equal(np.asarray(zeros), np.pad(x, 1))
    np.testing.assert_array_equal(np.asarray(ones), np.pad(x, 1, constant_values=1))
