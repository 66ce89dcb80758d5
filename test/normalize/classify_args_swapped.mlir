// Data on the right of a weight, as jnp.einsum("btd,ndk->nbtk", x, w) writes it: the batch, where the weight is state.
// RUN: rhino-opt %s --split-input-file --rhino-classify-args | filecheck %s

// CHECK: func.func @main
// CHECK-SAME: tensor<3x8x4xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32},
// CHECK-SAME: tensor<16x6x8xf32> {rhino.role = "batch"},
// CHECK-SAME: tensor<16x6xf32> {rhino.role = "batch"},
// Its leading dimension is not that of the data, so it may be a kernel that does not learn.
// CHECK-SAME: tensor<5x8xf32> {rhino.role = "param"})
func.func @main(%w: tensor<3x8x4xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<16x6x8xf32>, %y: tensor<16x6xf32>,
                %k: tensor<5x8xf32>) -> (tensor<3x8x4xf32>, tensor<f32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.dot_general %w, %x, contracting_dims = [1] x [2] : (tensor<3x8x4xf32>, tensor<16x6x8xf32>) -> tensor<3x4x16x6xf32>
  %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<3x4x16x6xf32>, tensor<f32>) -> tensor<16x6xf32>
  %2 = stablehlo.subtract %1, %y : tensor<16x6xf32>
  %3 = stablehlo.dot_general %w, %k, contracting_dims = [1] x [1] : (tensor<3x8x4xf32>, tensor<5x8xf32>) -> tensor<3x4x5xf32>
  %4 = stablehlo.reduce(%3 init: %zero) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<3x4x5xf32>, tensor<f32>) -> tensor<f32>
  %5 = stablehlo.reduce(%2 init: %4) applies stablehlo.add across dimensions = [0, 1] : (tensor<16x6xf32>, tensor<f32>) -> tensor<f32>
  %6 = stablehlo.reduce(%x init: %5) applies stablehlo.add across dimensions = [0, 1] : (tensor<16x6x8xf32>, tensor<f32>) -> tensor<8xf32>
  %7 = stablehlo.broadcast_in_dim %6, dims = [1] : (tensor<8xf32>) -> tensor<3x8x4xf32>
  %8 = stablehlo.subtract %w, %7 : tensor<3x8x4xf32>
  return %8, %5 : tensor<3x8x4xf32>, tensor<f32>
}

// -----

// The only data there is.
// CHECK: func.func @main
// CHECK-SAME: tensor<16x8xf32> {rhino.role = "batch"})
func.func @main(%w: tensor<8x4xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<16x8xf32>) -> (tensor<8x4xf32>, tensor<f32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.dot_general %w, %x, contracting_dims = [0] x [1] : (tensor<8x4xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
  %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x16xf32>, tensor<f32>) -> tensor<f32>
  %2 = stablehlo.dot_general %x, %0, contracting_dims = [0] x [1] : (tensor<16x8xf32>, tensor<4x16xf32>) -> tensor<8x4xf32>
  %3 = stablehlo.subtract %w, %2 : tensor<8x4xf32>
  return %3, %1 : tensor<8x4xf32>, tensor<f32>
}

// -----

// With nothing that learns both may be weights.
// CHECK: func.func @main
// CHECK-SAME: tensor<16x8xf32> {rhino.role = "param"})
func.func @main(%w: tensor<8x4xf32>, %x: tensor<16x8xf32>) -> tensor<4x16xf32> {
  %0 = stablehlo.dot_general %w, %x, contracting_dims = [0] x [1] : (tensor<8x4xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
  return %0 : tensor<4x16xf32>
}
