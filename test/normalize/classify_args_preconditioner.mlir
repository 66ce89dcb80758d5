// Optimizer state that is contracted, as by Muon and Shampoo, is still optimizer state: the loss does not depend on it.
// RUN: rhino-opt %s --rhino-classify-args | filecheck %s

// CHECK: func.func @main
// CHECK-SAME: tensor<8x8xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32}
// CHECK-SAME: tensor<8x8xf32> {rhino.role = "opt_state", tf.aliasing_output = 1 : i32}
// CHECK-SAME: tensor<16x8xf32> {rhino.role = "batch"}
func.func @main(%w: tensor<8x8xf32> {tf.aliasing_output = 0 : i32}, %p: tensor<8x8xf32> {tf.aliasing_output = 1 : i32},
                %x: tensor<16x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>, tensor<16x8xf32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x8xf32>) -> tensor<16x8xf32>
  %1 = stablehlo.dot_general %x, %0, contracting_dims = [0] x [0] : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
  %2 = stablehlo.add %p, %1 : tensor<8x8xf32>
  %3 = stablehlo.dot_general %2, %1, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %4 = stablehlo.subtract %w, %3 : tensor<8x8xf32>
  return %4, %2, %0 : tensor<8x8xf32>, tensor<8x8xf32>, tensor<16x8xf32>
}
