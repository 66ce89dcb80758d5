// The running mean of BatchNorm: a training step updates it without reading it (state, but no parameter), an evaluation
// step reads it like any parameter.
// RUN: rhino-opt %s --rhino-classify-args --split-input-file | filecheck %s

// CHECK: func.func @main
// CHECK-SAME: tensor<8xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32}
// CHECK-SAME: tensor<8xf32> {rhino.role = "opt_state", tf.aliasing_output = 1 : i32}
// CHECK-SAME: tensor<16x8xf32> {rhino.role = "batch"}
func.func @main(%scale: tensor<8xf32> {tf.aliasing_output = 0 : i32}, %mean: tensor<8xf32> {tf.aliasing_output = 1 : i32},
                %x: tensor<16x8xf32>) -> (tensor<8xf32>, tensor<8xf32>, tensor<16x8xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<16x8xf32>, tensor<f32>) -> tensor<8xf32>
  %1 = stablehlo.broadcast_in_dim %0, dims = [1] : (tensor<8xf32>) -> tensor<16x8xf32>
  %2 = stablehlo.subtract %x, %1 : tensor<16x8xf32>
  %3 = stablehlo.broadcast_in_dim %scale, dims = [1] : (tensor<8xf32>) -> tensor<16x8xf32>
  %4 = stablehlo.multiply %2, %3 : tensor<16x8xf32>
  %5 = stablehlo.reduce(%4 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<16x8xf32>, tensor<f32>) -> tensor<8xf32>
  %6 = stablehlo.subtract %scale, %5 : tensor<8xf32>
  %7 = stablehlo.add %mean, %0 : tensor<8xf32>
  return %6, %7, %4 : tensor<8xf32>, tensor<8xf32>, tensor<16x8xf32>
}

// -----

// CHECK: func.func @main
// CHECK-SAME: tensor<8xf32> {rhino.role = "param"}
// CHECK-SAME: tensor<16x8xf32> {rhino.role = "batch"}
func.func @main(%mean: tensor<8xf32>, %x: tensor<16x8xf32>) -> tensor<16xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.broadcast_in_dim %mean, dims = [1] : (tensor<8xf32>) -> tensor<16x8xf32>
  %1 = stablehlo.subtract %x, %0 : tensor<16x8xf32>
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<16x8xf32>, tensor<f32>) -> tensor<16xf32>
  return %2 : tensor<16xf32>
}
