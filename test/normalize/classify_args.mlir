// A donated training step: SGD with momentum on y = x w + b, as jax aliases its state.
// RUN: rhino-opt %s --rhino-classify-args | filecheck %s

// CHECK: func.func @main
// The weights enter the computation and the loss depends on them; momentum is only combined with its gradient.
// CHECK-SAME: %[[W:.*]]: tensor<8x4xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32},
// CHECK-SAME: tensor<4xf32> {rhino.role = "param", tf.aliasing_output = 1 : i32},
// CHECK-SAME: tensor<8x4xf32> {rhino.role = "opt_state", tf.aliasing_output = 2 : i32},
// CHECK-SAME: tensor<i32> {rhino.role = "opt_state", tf.aliasing_output = 3 : i32},
// Data has the leading dimension of the batch: inputs, targets and the mask.
// CHECK-SAME: tensor<16x8xf32> {rhino.role = "batch"},
// CHECK-SAME: tensor<16x4xf32> {rhino.role = "batch"},
// CHECK-SAME: tensor<16xi1> {rhino.role = "batch"},
// Scalars, keys and unused arguments are neither.
// CHECK-SAME: tensor<f32> {rhino.role = "other"},
// CHECK-SAME: tensor<2xui32> {rhino.role = "other"},
// CHECK-SAME: tensor<3xf32> {rhino.role = "other"})
func.func @main(%w: tensor<8x4xf32> {tf.aliasing_output = 0 : i32}, %b: tensor<4xf32> {tf.aliasing_output = 1 : i32},
                %m: tensor<8x4xf32> {tf.aliasing_output = 2 : i32}, %n: tensor<i32> {tf.aliasing_output = 3 : i32},
                %x: tensor<16x8xf32>, %y: tensor<16x4xf32>, %mask: tensor<16xi1>, %lr: tensor<f32>,
                %key: tensor<2xui32>, %unused: tensor<3xf32>)
    -> (tensor<8x4xf32>, tensor<4xf32>, tensor<8x4xf32>, tensor<i32>, tensor<f32>, tensor<2xui32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  // Forward.
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x4xf32>) -> tensor<16x4xf32>
  %1 = stablehlo.broadcast_in_dim %b, dims = [1] : (tensor<4xf32>) -> tensor<16x4xf32>
  %2 = stablehlo.add %0, %1 : tensor<16x4xf32>
  %3 = stablehlo.subtract %2, %y : tensor<16x4xf32>
  %4 = stablehlo.broadcast_in_dim %mask, dims = [0] : (tensor<16xi1>) -> tensor<16x4xi1>
  %5 = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<16x4xf32>
  %6 = stablehlo.select %4, %3, %5 : tensor<16x4xi1>, tensor<16x4xf32>
  %7 = stablehlo.multiply %6, %6 : tensor<16x4xf32>
  %loss = stablehlo.reduce(%7 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<16x4xf32>, tensor<f32>) -> tensor<f32>
  // Backward.
  %8 = stablehlo.dot_general %x, %6, contracting_dims = [0] x [0] : (tensor<16x8xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  %9 = stablehlo.reduce(%6 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<16x4xf32>, tensor<f32>) -> tensor<4xf32>
  // Update.
  %10 = stablehlo.add %m, %8 : tensor<8x4xf32>
  %11 = stablehlo.broadcast_in_dim %lr, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
  %12 = stablehlo.multiply %11, %10 : tensor<8x4xf32>
  %13 = stablehlo.subtract %w, %12 : tensor<8x4xf32>
  %14 = stablehlo.subtract %b, %9 : tensor<4xf32>
  %15 = stablehlo.add %n, %one : tensor<i32>
  return %13, %14, %10, %15, %loss, %key : tensor<8x4xf32>, tensor<4xf32>, tensor<8x4xf32>, tensor<i32>, tensor<f32>, tensor<2xui32>
}
