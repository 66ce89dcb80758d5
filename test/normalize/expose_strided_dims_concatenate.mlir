// A contraction over what was concatenated, as an LSTM cell writes [x, h] @ w: rows come in chunks, and gates too.
// RUN: rhino-opt %s --rhino-expose-strided-dims | filecheck %s

// CHECK: @main(%[[W:.*]]: tensor<2x8x4x8xf32> {rhino.role = "param", rhino.strided = {dims = [{dim = 0 : i64, factors = [2, 8]}, {dim = 1 : i64, factors = [4, 8]}], shape = [16, 32]}}
func.func @main(%w: tensor<16x32xf32> {rhino.role = "param"}, %x: tensor<4x8xf32> {rhino.role = "batch"}, %h: tensor<4x8xf32> {rhino.role = "batch"})
    -> tensor<4x8xf32> {
  // CHECK: %[[X:.*]] = stablehlo.reshape %{{.*}} : (tensor<4x8xf32>) -> tensor<4x1x8xf32>
  // CHECK: %[[H:.*]] = stablehlo.reshape %{{.*}} : (tensor<4x8xf32>) -> tensor<4x1x8xf32>
  // CHECK: %[[XH:.*]] = stablehlo.concatenate %[[X]], %[[H]], dim = 1 : (tensor<4x1x8xf32>, tensor<4x1x8xf32>) -> tensor<4x2x8xf32>
  %0 = stablehlo.concatenate %x, %h, dim = 1 : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x16xf32>
  // CHECK: stablehlo.dot_general %[[XH]], %[[W]], contracting_dims = [1, 2] x [0, 1] : (tensor<4x2x8xf32>, tensor<2x8x4x8xf32>) -> tensor<4x4x8xf32>
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] : (tensor<4x16xf32>, tensor<16x32xf32>) -> tensor<4x32xf32>
  // CHECK: stablehlo.slice %{{.*}} [0:4, 0:1, 0:8] : (tensor<4x4x8xf32>) -> tensor<4x1x8xf32>
  %i = stablehlo.slice %1 [0:4, 0:8] : (tensor<4x32xf32>) -> tensor<4x8xf32>
  %f = stablehlo.slice %1 [0:4, 8:16] : (tensor<4x32xf32>) -> tensor<4x8xf32>
  %g = stablehlo.slice %1 [0:4, 16:24] : (tensor<4x32xf32>) -> tensor<4x8xf32>
  %o = stablehlo.slice %1 [0:4, 24:32] : (tensor<4x32xf32>) -> tensor<4x8xf32>
  %2 = stablehlo.multiply %i, %f : tensor<4x8xf32>
  %3 = stablehlo.multiply %g, %o : tensor<4x8xf32>
  %4 = stablehlo.add %2, %3 : tensor<4x8xf32>
  return %4 : tensor<4x8xf32>
}
