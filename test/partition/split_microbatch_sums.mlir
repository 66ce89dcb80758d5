// Local sums: what is added up over micro-batches has a dimension in front, which is added up after the loop.
// RUN: rhino-opt %s --split-input-file --rhino-split-microbatch='count=2 sums=4' | filecheck %s

// A product sums groups of examples, each apart: they are a batching dimension. What is done to the gradient in the loop
// is done to each local sum; a reduction over examples keeps their groups.
// CHECK-LABEL: func.func @main(
func.func @main(%w: tensor<6x3xf32> {rhino.role = "param"}, %x: tensor<16x6xf32> {rhino.role = "batch"}) -> (tensor<3x6xf32>, tensor<3xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  // CHECK: stablehlo.while({{.*}}) : tensor<i32>, tensor<4x3x6xf32>, tensor<4x3xf32>
  // CHECK-SAME: rhino.microbatches = {count = 2 : i64, sums = 4 : i64}
  // CHECK: %[[Y:.*]] = stablehlo.dot_general {{.*}} -> tensor<8x3xf32>
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x6xf32>, tensor<6x3xf32>) -> tensor<16x3xf32>
  // CHECK: %[[YS:.*]] = stablehlo.reshape %[[Y]] : (tensor<8x3xf32>) -> tensor<4x2x3xf32>
  // CHECK: %[[XS:.*]] = stablehlo.reshape %{{.*}} : (tensor<8x6xf32>) -> tensor<4x2x6xf32>
  // CHECK: %[[DOT:.*]] = stablehlo.dot_general %[[YS]], %[[XS]], batching_dims = [0] x [0], contracting_dims = [1] x [1]
  // CHECK-SAME: {rhino.sums = 4 : i64} : (tensor<4x2x3xf32>, tensor<4x2x6xf32>) -> tensor<4x3x6xf32>
  // CHECK: %[[OTHER:.*]] = stablehlo.dot_general {{.*}} -> tensor<4x3x6xf32>
  // CHECK: %[[BOTH:.*]] = stablehlo.add %[[DOT]], %[[OTHER]] : tensor<4x3x6xf32>
  // CHECK: stablehlo.add %{{.*}}, %[[BOTH]] : tensor<4x3x6xf32>
  %1 = stablehlo.dot_general %0, %x, contracting_dims = [0] x [0] : (tensor<16x3xf32>, tensor<16x6xf32>) -> tensor<3x6xf32>
  %squares = stablehlo.multiply %0, %0 : tensor<16x3xf32>
  %other = stablehlo.dot_general %squares, %x, contracting_dims = [0] x [0] : (tensor<16x3xf32>, tensor<16x6xf32>) -> tensor<3x6xf32>
  %2 = stablehlo.add %1, %other : tensor<3x6xf32>
  // CHECK: stablehlo.reduce(%{{.*}} init: %{{.*}}) applies stablehlo.add across dimensions = [1] {rhino.sums = 4 : i64} : (tensor<4x2x3xf32>, tensor<f32>) -> tensor<4x3xf32>
  %3 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<16x3xf32>, tensor<f32>) -> tensor<3xf32>
  // CHECK: stablehlo.return
  // CHECK: }
  // CHECK-DAG: stablehlo.reduce(%{{.*}}#1 init: %{{.*}}) applies stablehlo.add across dimensions = [0] : (tensor<4x3x6xf32>, tensor<f32>) -> tensor<3x6xf32>
  // CHECK-DAG: stablehlo.reduce(%{{.*}}#2 init: %{{.*}}) applies stablehlo.add across dimensions = [0] : (tensor<4x3xf32>, tensor<f32>) -> tensor<3xf32>
  return %2, %3 : tensor<3x6xf32>, tensor<3xf32>
}

// -----

// A look-up's gradient: the table is there for each local sum, with indices and updates of its own.
// CHECK-LABEL: func.func @main(
func.func @main(%ids: tensor<16x5xi32> {rhino.role = "batch"}, %g: tensor<16x5x3xf32> {rhino.role = "batch"}) -> tensor<7x3xf32> {
  %zeros = stablehlo.constant dense<0.0> : tensor<7x3xf32>
  %0 = stablehlo.reshape %ids : (tensor<16x5xi32>) -> tensor<16x5x1xi32>
  // CHECK: %[[INTO:.*]] = stablehlo.broadcast_in_dim %{{.*}}, dims = [1, 2] : (tensor<7x3xf32>) -> tensor<4x7x3xf32>
  // CHECK: %[[IDS:.*]] = stablehlo.reshape %{{.*}} : (tensor<8x5x1xi32>) -> tensor<4x2x5x1xi32>
  // CHECK: %[[G:.*]] = stablehlo.reshape %{{.*}} : (tensor<8x5x3xf32>) -> tensor<4x2x5x3xf32>
  // CHECK: "stablehlo.scatter"(%[[INTO]], %[[IDS]], %[[G]])
  // CHECK-SAME: update_window_dims = [3], inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 3
  // CHECK: rhino.sums = 4 : i64
  %1 = "stablehlo.scatter"(%zeros, %0, %g) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 2>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %2 = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %2 : tensor<f32>
  }) : (tensor<7x3xf32>, tensor<16x5x1xi32>, tensor<16x5x3xf32>) -> tensor<7x3xf32>
  return %1 : tensor<7x3xf32>
}

// -----

// Examples between other dimensions: local sums come to the front.
// CHECK-LABEL: func.func @main(
func.func @main(%x: tensor<16x2x3xf32> {rhino.role = "batch"}) -> tensor<2x3xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.transpose %x, dims = [1, 0, 2] : (tensor<16x2x3xf32>) -> tensor<2x16x3xf32>
  // CHECK: %[[SUM:.*]] = stablehlo.reduce({{.*}}) applies stablehlo.add across dimensions = [2] {rhino.sums = 4 : i64} : (tensor<2x4x2x3xf32>, tensor<f32>) -> tensor<2x4x3xf32>
  // CHECK: stablehlo.transpose %[[SUM]], dims = [1, 0, 2] : (tensor<2x4x3xf32>) -> tensor<4x2x3xf32>
  %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<2x16x3xf32>, tensor<f32>) -> tensor<2x3xf32>
  return %1 : tensor<2x3xf32>
}

// -----

// A loop over layers writes a row of each local sum into its stack, which starts as zeros of all.
// CHECK-LABEL: func.func @main(
func.func @main(%x: tensor<16x3xf32> {rhino.role = "batch"}) -> tensor<2x3xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %stack = stablehlo.constant dense<0.0> : tensor<2x3xf32>
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c2 = stablehlo.constant dense<2> : tensor<i32>
  // CHECK: %[[ZEROS:.*]] = stablehlo.broadcast_in_dim %{{.*}}, dims = [1, 2] : (tensor<2x3xf32>) -> tensor<4x2x3xf32>
  // CHECK: stablehlo.while({{.*}} = %[[ZEROS]]
  // CHECK: %[[ROW:.*]] = stablehlo.reshape %{{.*}} : (tensor<4x3xf32>) -> tensor<4x1x3xf32>
  // CHECK: stablehlo.dynamic_update_slice %{{.*}}, %[[ROW]], %{{.*}}, %{{.*}}, %{{.*}} : (tensor<4x2x3xf32>, tensor<4x1x3xf32>, tensor<i32>, tensor<i32>, tensor<i32>)
  %0:2 = stablehlo.while(%i = %c0, %s = %stack) : tensor<i32>, tensor<2x3xf32>
  cond {
    %1 = stablehlo.compare LT, %i, %c2 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<16x3xf32>, tensor<f32>) -> tensor<3xf32>
    %2 = stablehlo.reshape %1 : (tensor<3xf32>) -> tensor<1x3xf32>
    %3 = stablehlo.dynamic_update_slice %s, %2, %i, %c0 : (tensor<2x3xf32>, tensor<1x3xf32>, tensor<i32>, tensor<i32>) -> tensor<2x3xf32>
    %4 = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %4, %3 : tensor<i32>, tensor<2x3xf32>
  }
  return %0#1 : tensor<2x3xf32>
}

// -----

// Only sums: the largest of all examples stays one value.
// CHECK-LABEL: func.func @main(
func.func @main(%x: tensor<16x3xf32> {rhino.role = "batch"}) -> (tensor<3xf32>, tensor<3xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  // CHECK: stablehlo.while({{.*}}) : tensor<i32>, tensor<4x3xf32>, tensor<3xf32>
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<16x3xf32>, tensor<f32>) -> tensor<3xf32>
  %1 = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [0] : (tensor<16x3xf32>, tensor<f32>) -> tensor<3xf32>
  return %0, %1 : tensor<3xf32>, tensor<3xf32>
}
