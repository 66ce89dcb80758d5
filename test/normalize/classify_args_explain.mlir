// With explain, each argument that was classified gets a remark with the reason.
// RUN: rhino-opt %s --rhino-classify-args=explain=true --verify-diagnostics

func.func @main(
    %w: tensor<8x4xf32> {tf.aliasing_output = 0 : i32},  // expected-remark {{param: returned updated, and the loss depends on it}}
    %m: tensor<8x4xf32> {tf.aliasing_output = 1 : i32},  // expected-remark {{opt_state: returned updated, and only combined element by element}}
    %x: tensor<16x8xf32>,  // expected-remark {{batch: not returned, with the data's leading dimension 16}}
    %lr: tensor<f32>,  // expected-remark {{other: scalar}}
    %known: tensor<4xf32> {rhino.role = "other"}) -> (tensor<8x4xf32>, tensor<8x4xf32>, tensor<16x4xf32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x4xf32>) -> tensor<16x4xf32>
  %1 = stablehlo.dot_general %x, %0, contracting_dims = [0] x [0] : (tensor<16x8xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  %2 = stablehlo.add %m, %1 : tensor<8x4xf32>
  %3 = stablehlo.subtract %w, %2 : tensor<8x4xf32>
  return %3, %2, %0 : tensor<8x4xf32>, tensor<8x4xf32>, tensor<16x4xf32>
}
