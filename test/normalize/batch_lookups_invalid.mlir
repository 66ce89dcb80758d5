// It has no options. What does not count, or not to the end, stays as it is.
// RUN: not rhino-opt %s --rhino-batch-lookups=dim=0 2>&1 | filecheck %s --check-prefix=OPTION
// RUN: rhino-opt %s --rhino-batch-lookups | filecheck %s

// OPTION: 'dim'

// The first four of eight rows.
// CHECK-LABEL: func.func @fewer
// CHECK: %[[I:.*]] = stablehlo.concatenate
// CHECK: "stablehlo.gather"(%{{.*}}, %[[I]])
// CHECK-SAME: collapsed_slice_dims = [0, 1], start_index_map = [0, 1]
func.func @fewer(%x: tensor<8x5xf32>, %l: tensor<4x1xi32>) -> tensor<4xf32> {
  %n = stablehlo.iota dim = 0 : tensor<4x1xi32>
  %i = stablehlo.concatenate %n, %l, dim = 1 : (tensor<4x1xi32>, tensor<4x1xi32>) -> tensor<4x2xi32>
  %0 = "stablehlo.gather"(%x, %i) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 1>, slice_sizes = array<i64: 1, 1>}> : (tensor<8x5xf32>, tensor<4x2xi32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// Numbers in another order, and numbers of a type in which they begin again.
// CHECK-LABEL: func.func @order
// CHECK-COUNT-2: start_index_map = [0, 1]
func.func @order(%x: tensor<4x5xf32>, %z: tensor<300x5xf32>, %l: tensor<4x1xi32>, %m: tensor<300x1xi8>) -> (tensor<4xf32>, tensor<300xf32>) {
  %n = stablehlo.constant dense<[[0], [2], [1], [3]]> : tensor<4x1xi32>
  %i = stablehlo.concatenate %n, %l, dim = 1 : (tensor<4x1xi32>, tensor<4x1xi32>) -> tensor<4x2xi32>
  %0 = "stablehlo.gather"(%x, %i) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 1>, slice_sizes = array<i64: 1, 1>}> : (tensor<4x5xf32>, tensor<4x2xi32>) -> tensor<4xf32>
  %wide = stablehlo.iota dim = 0 : tensor<300x1xi32>
  %narrow = stablehlo.convert %wide : (tensor<300x1xi32>) -> tensor<300x1xi8>
  %j = stablehlo.concatenate %narrow, %m, dim = 1 : (tensor<300x1xi8>, tensor<300x1xi8>) -> tensor<300x2xi8>
  %1 = "stablehlo.gather"(%z, %j) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 1>, slice_sizes = array<i64: 1, 1>}> : (tensor<300x5xf32>, tensor<300x2xi8>) -> tensor<300xf32>
  return %0, %1 : tensor<4xf32>, tensor<300xf32>
}
