// A product that a loop keeps is made as what is kept has it: operands are exchanged, and transposed where theirs come
// in another order.
// RUN: rhino-opt %s --rhino-order-products | filecheck %s

// Scores of grouped attention: keys times queries, stacked as groups, queries, keys.
// CHECK-LABEL: func.func @grouped
// CHECK: do {
// CHECK: %[[Q:.*]] = stablehlo.transpose %[[Y:.*]], dims = [0, 2, 1, 3] : (tensor<2x64x4x8xf32>) -> tensor<2x4x64x8xf32>
// CHECK-NEXT: %[[S:.*]] = stablehlo.dot_general %[[Q]], %[[X:.*]], batching_dims = [0] x [0], contracting_dims = [3] x [2], precision = [HIGHEST, DEFAULT] : (tensor<2x4x64x8xf32>, tensor<2x64x8xf32>) -> tensor<2x4x64x64xf32>
// CHECK-NOT: stablehlo.transpose
// CHECK: %[[ROW:.*]] = stablehlo.broadcast_in_dim %[[S]]
// CHECK-NEXT: stablehlo.dynamic_update_slice %{{.*}}, %[[ROW]]
// CHECK: stablehlo.exponential %[[S]]
func.func @grouped(%keys: tensor<2x64x8xf32>, %queries: tensor<2x64x4x8xf32>) -> (tensor<3x2x4x64x64xf32>, tensor<2x4x64x64xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<3> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %empty = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<3x2x4x64x64xf32>
  %last = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<2x4x64x64xf32>
  %r:3 = stablehlo.while(%i = %zero, %stack = %empty, %w = %last) : tensor<i32>, tensor<3x2x4x64x64xf32>, tensor<2x4x64x64xf32>
  cond {
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %0 = stablehlo.dot_general %keys, %queries, batching_dims = [0] x [0], contracting_dims = [2] x [3], precision = [DEFAULT, HIGHEST] : (tensor<2x64x8xf32>, tensor<2x64x4x8xf32>) -> tensor<2x64x64x4xf32>
    %1 = stablehlo.transpose %0, dims = [0, 3, 2, 1] : (tensor<2x64x64x4xf32>) -> tensor<2x4x64x64xf32>
    %row = stablehlo.broadcast_in_dim %1, dims = [1, 2, 3, 4] : (tensor<2x4x64x64xf32>) -> tensor<1x2x4x64x64xf32>
    %2 = stablehlo.dynamic_update_slice %stack, %row, %i, %zero, %zero, %zero, %zero : (tensor<3x2x4x64x64xf32>, tensor<1x2x4x64x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x2x4x64x64xf32>
    %3 = stablehlo.exponential %1 : tensor<2x4x64x64xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %2, %3 : tensor<i32>, tensor<3x2x4x64x64xf32>, tensor<2x4x64x64xf32>
  }
  return %r#1, %r#2 : tensor<3x2x4x64x64xf32>, tensor<2x4x64x64xf32>
}

// Operands stay where they are if only the order within one of them, and that of the batch, is another. A row may be
// converted, and have its shape said otherwise.
// CHECK-LABEL: func.func @within
// CHECK-SAME: %[[A:.*]]: tensor<2x3x16x4xf32>, %[[B:.*]]: tensor<2x3x4x16x16xf32>
// CHECK: %[[T:.*]] = stablehlo.transpose %[[B]], dims = [0, 1, 2, 4, 3]
// CHECK-NEXT: %[[S:.*]] = stablehlo.dot_general %[[A]], %[[T]], batching_dims = [1, 0] x [1, 0], contracting_dims = [3] x [2] : (tensor<2x3x16x4xf32>, tensor<2x3x4x16x16xf32>) -> tensor<3x2x16x16x16xf32>
// CHECK-NEXT: stablehlo.convert %[[S]]
func.func @within(%a: tensor<2x3x16x4xf32>, %b: tensor<2x3x4x16x16xf32>, %stack: tensor<5x24576xbf16>, %i: tensor<i32>) -> tensor<5x24576xbf16> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0 = stablehlo.dot_general %a, %b, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2] : (tensor<2x3x16x4xf32>, tensor<2x3x4x16x16xf32>) -> tensor<2x3x16x16x16xf32>
  %1 = stablehlo.transpose %0, dims = [1, 0, 2, 4, 3] : (tensor<2x3x16x16x16xf32>) -> tensor<3x2x16x16x16xf32>
  %2 = stablehlo.convert %1 : (tensor<3x2x16x16x16xf32>) -> tensor<3x2x16x16x16xbf16>
  %row = stablehlo.reshape %2 : (tensor<3x2x16x16x16xbf16>) -> tensor<1x24576xbf16>
  %3 = stablehlo.dynamic_update_slice %stack, %row, %i, %zero : (tensor<5x24576xbf16>, tensor<1x24576xbf16>, tensor<i32>, tensor<i32>) -> tensor<5x24576xbf16>
  return %3 : tensor<5x24576xbf16>
}
