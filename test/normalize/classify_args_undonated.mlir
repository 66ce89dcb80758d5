// A training step without any donation: state is recognised by the output of its type made of its elements.
// RUN: rhino-opt %s --rhino-classify-args --inline | filecheck %s

// CHECK: func.func @main
// CHECK-SAME: tensor<8x4xf32> {rhino.role = "param"}
// CHECK-SAME: tensor<8x4xf32> {rhino.role = "opt_state"}
// CHECK-SAME: tensor<16x8xf32> {rhino.role = "batch"}
// CHECK-SAME: tensor<16x4xf32> {rhino.role = "batch"}
func.func @main(%w: tensor<8x4xf32>, %m: tensor<8x4xf32>, %x: tensor<16x8xf32>, %y: tensor<16x4xf32>) -> (tensor<8x4xf32>, tensor<8x4xf32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x4xf32>) -> tensor<16x4xf32>
  %1 = stablehlo.subtract %0, %y : tensor<16x4xf32>
  %2 = stablehlo.dot_general %x, %1, contracting_dims = [0] x [0] : (tensor<16x8xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  %3 = stablehlo.add %m, %2 : tensor<8x4xf32>
  %4 = stablehlo.subtract %w, %3 : tensor<8x4xf32>
  return %4, %3 : tensor<8x4xf32>, tensor<8x4xf32>
}
