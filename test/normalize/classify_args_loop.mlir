// A scan over layers: stacked parameters enter the loop, are sliced there and contracted; their momentum stays outside.
// RUN: rhino-opt %s --rhino-classify-args | filecheck %s

// CHECK: func.func @main
// CHECK-SAME: tensor<3x8x8xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32}
// CHECK-SAME: tensor<3x8x8xf32> {rhino.role = "opt_state", tf.aliasing_output = 1 : i32}
// CHECK-SAME: tensor<16x8xf32> {rhino.role = "batch"}
func.func @main(%w: tensor<3x8x8xf32> {tf.aliasing_output = 0 : i32}, %m: tensor<3x8x8xf32> {tf.aliasing_output = 1 : i32},
                %x: tensor<16x8xf32>) -> (tensor<3x8x8xf32>, tensor<3x8x8xf32>, tensor<16x8xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %0:3 = stablehlo.while(%i = %zero, %h = %x, %ws = %w) : tensor<i32>, tensor<16x8xf32>, tensor<3x8x8xf32>
  cond {
    %c = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %5 = stablehlo.dynamic_slice %ws, %i, %zero, %zero, sizes = [1, 8, 8] : (tensor<3x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x8xf32>
    %6 = stablehlo.reshape %5 : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
    %7 = stablehlo.dot_general %h, %6, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x8xf32>) -> tensor<16x8xf32>
    %8 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %8, %7, %ws : tensor<i32>, tensor<16x8xf32>, tensor<3x8x8xf32>
  }
  %1 = stablehlo.dot_general %0#1, %0#1, contracting_dims = [0] x [0] : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
  %2 = stablehlo.broadcast_in_dim %1, dims = [1, 2] : (tensor<8x8xf32>) -> tensor<3x8x8xf32>
  %3 = stablehlo.add %m, %2 : tensor<3x8x8xf32>
  %4 = stablehlo.subtract %w, %3 : tensor<3x8x8xf32>
  return %4, %3, %0#1 : tensor<3x8x8xf32>, tensor<3x8x8xf32>, tensor<16x8xf32>
}
