"""Slices whose starts only the run knows give on 8 devices what they give on one, out of range too."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from rhino.compile import Executable, compile_module

SLICE = """
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%x: tensor<5xf32>, %at: tensor<i32>) -> (tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) {
  %0 = stablehlo.dynamic_slice %x, %at, sizes = [2] {
    sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}]>]>} : (tensor<5xf32>, tensor<i32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}
"""
SCATTER = """
sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func @main(%x: tensor<4xi32>, %new: tensor<1xi32>, %at: tensor<1x1xi32>)
    -> (tensor<4xi32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) {
  %0 = sdy.sharding_constraint %x <@mesh, [{"y"}]> : tensor<4xi32>
  %1 = "stablehlo.scatter"(%0, %at, %new) ({
    ^bb0(%old: tensor<i32>, %put: tensor<i32>):
      stablehlo.return %put : tensor<i32>
  }) {scatter_dimension_numbers = #stablehlo.scatter<
        inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>,
      sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"y"}]>]>}
      : (tensor<4xi32>, tensor<1x1xi32>, tensor<1xi32>) -> tensor<4xi32>
  return %1 : tensor<4xi32>
}
"""


@cache
def slicing() -> Executable:
    return compile_module(SLICE)


@cache
def scattering() -> Executable:
    return compile_module(SCATTER)


@pytest.mark.parametrize("start", [-3, 1, 3, 4, 9])
def test_a_slice_that_is_cut_again(start: int) -> None:
    x = np.arange(5, dtype=np.float32)
    at = min(max(start, 0), 3)
    (found,) = slicing()(x, np.asarray(start, np.int32))
    np.testing.assert_array_equal(found, x[at : at + 2])


@pytest.mark.parametrize("at", [-1, 0, 1, 3, 4])
def test_one_element_of_a_split_tensor_is_set(at: int) -> None:
    x = np.arange(10, 14, dtype=np.int32)
    want = x.copy()
    if 0 <= at < 4:
        want[at] = 99
    (found,) = scattering()(x, np.asarray([99], np.int32), np.asarray([[at]], np.int32))
    np.testing.assert_array_equal(found, want)


UPDATE = """
sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func @main(%x: tensor<6xi8> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}]>}, %new: tensor<1xi8>, %at: tensor<i64>)
    -> (tensor<6xi8> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}]>}) {
  %0 = stablehlo.dynamic_update_slice %x, %new, %at {
    sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"y"}]>]>}
    : (tensor<6xi8>, tensor<1xi8>, tensor<i64>) -> tensor<6xi8>
  return %0 : tensor<6xi8>
}
"""


@cache
def updating() -> Executable:
    return compile_module(UPDATE)


@pytest.mark.parametrize("at", [-(2**40), 2, 2**32 + 1, 2**62])
def test_an_update_beyond_32_bits(at: int) -> None:
    want = np.arange(6, dtype=np.int8)
    want[min(max(at, 0), 5)] = 99
    (found,) = updating()(np.arange(6, dtype=np.int8), np.asarray([99], np.int8), np.asarray(at, np.int64))
    np.testing.assert_array_equal(found, want)


CACHE = """
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%x: tensor<16x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}, %row: tensor<1x2xf32>,
                %at: tensor<i32>)
    -> (tensor<16x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0 = stablehlo.dynamic_update_slice %x, %row, %at, %zero
      : (tensor<16x2xf32>, tensor<1x2xf32>, tensor<i32>, tensor<i32>) -> tensor<16x2xf32>
  return %0 : tensor<16x2xf32>
}
"""


@pytest.mark.parametrize("at", [-2, 3, 15, 16, 100])
def test_a_row_beyond_the_end_of_a_cache_is_the_last(at: int) -> None:
    x = np.zeros((16, 2), np.float32)
    want = x.copy()
    want[min(max(at, 0), 15)] = 1
    (found,) = _caching()(x, np.ones((1, 2), np.float32), np.asarray(at, np.int32))
    np.testing.assert_array_equal(found, want)


@cache
def _caching() -> Executable:
    return compile_module(CACHE)


WINDOWS = """
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%x: tensor<6x3xui8>, %at: tensor<2x4xi8>, %one: tensor<2xi8>, %row: tensor<i8>)
    -> (tensor<4x2x3xui8> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {"x"}, {}]>},
        tensor<2x3xui8> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
        tensor<2x3xui8> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %0 = "stablehlo.gather"(%x, %at) {dimension_numbers = #stablehlo.gather<
        offset_dims = [1, 2], start_index_map = [1, 0], index_vector_dim = 0>, slice_sizes = array<i64: 2, 3>,
      sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"y"}, {}, {}]>]>}
      : (tensor<6x3xui8>, tensor<2x4xi8>) -> tensor<4x2x3xui8>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"y"}, {"x"}, {}]> : tensor<4x2x3xui8>
  %2 = "stablehlo.gather"(%x, %one) {dimension_numbers = #stablehlo.gather<
        offset_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 0>, slice_sizes = array<i64: 2, 3>,
      sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}]>]>}
      : (tensor<6x3xui8>, tensor<2xi8>) -> tensor<2x3xui8>
  %3 = sdy.sharding_constraint %2 <@mesh, [{"x"}, {}]> : tensor<2x3xui8>
  %4 = "stablehlo.gather"(%x, %row) {dimension_numbers = #stablehlo.gather<
        offset_dims = [0, 1], start_index_map = [0], index_vector_dim = 0>, slice_sizes = array<i64: 2, 3>,
      sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}]>]>}
      : (tensor<6x3xui8>, tensor<i8>) -> tensor<2x3xui8>
  %5 = sdy.sharding_constraint %4 <@mesh, [{"x"}, {}]> : tensor<2x3xui8>
  return %1, %3, %5 : tensor<4x2x3xui8>, tensor<2x3xui8>, tensor<2x3xui8>
}
"""


def test_windows_that_are_cut_again() -> None:
    """XLA makes slices of them: of one, and of those of which each device has one."""
    x, rows = np.arange(18, dtype=np.uint8).reshape(6, 3), np.asarray([-3, 1, 5, 9], np.int8)
    at, last = np.stack([np.zeros_like(rows), rows]), rows[-1]
    found = compile_module(WINDOWS)(x, at, np.asarray([last, 0], np.int8), np.asarray(last))
    begins = np.clip(rows, 0, 4)
    np.testing.assert_array_equal(found[0], np.stack([x[a : a + 2] for a in begins]))
    np.testing.assert_array_equal(found[1], x[4:])
    np.testing.assert_array_equal(found[2], x[4:])
