// A fused projection with bias, cut into three, with its backward pass and an update of the donated state.
// RUN: rhino-opt %s --rhino-expose-strided-dims | filecheck %s
// A second run finds nothing to do.
// RUN: rhino-opt %s --rhino-expose-strided-dims --rhino-expose-strided-dims | filecheck %s

// The parameters, the moment and what takes their buffers are stored in chunks; the data and the other matrix are not.
// CHECK: func.func @main(%[[W:.*]]: tensor<8x3x16xf32> {rhino.role = "param", rhino.strided = {dims = [{dim = 1 : i64, factors = [3, 16]}], shape = [8, 48]}, tf.aliasing_output = 0 : i32},
// CHECK-SAME: %[[B:.*]]: tensor<3x16xf32> {rhino.role = "param", rhino.strided = {dims = [{dim = 0 : i64, factors = [3, 16]}], shape = [48]}, tf.aliasing_output = 1 : i32},
// CHECK-SAME: %[[M:.*]]: tensor<8x3x16xf32> {rhino.role = "opt_state", rhino.strided = {dims = [{dim = 1 : i64, factors = [3, 16]}], shape = [8, 48]}, tf.aliasing_output = 2 : i32},
// CHECK-SAME: %[[O:.*]]: tensor<16x8xf32> {rhino.role = "param"}, %[[X:.*]]: tensor<4x8xf32> {rhino.role = "batch"})
// CHECK-SAME: -> (tensor<8x3x16xf32> {rhino.strided = {dims = [{dim = 1 : i64, factors = [3, 16]}], shape = [8, 48]}}, tensor<3x16xf32> {rhino.strided = {dims = [{dim = 0 : i64, factors = [3, 16]}], shape = [48]}}, tensor<8x3x16xf32> {rhino.strided = {dims = [{dim = 1 : i64, factors = [3, 16]}], shape = [8, 48]}}, tensor<4x8xf32>)
func.func @main(%w: tensor<8x48xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32},
                %b: tensor<48xf32> {rhino.role = "param", tf.aliasing_output = 1 : i32},
                %m: tensor<8x48xf32> {rhino.role = "opt_state", tf.aliasing_output = 2 : i32},
                %o: tensor<16x8xf32> {rhino.role = "param"}, %x: tensor<4x8xf32> {rhino.role = "batch"})
    -> (tensor<8x48xf32>, tensor<48xf32>, tensor<8x48xf32>, tensor<4x8xf32>) {
  // CHECK: %[[ZERO:.*]] = stablehlo.constant dense<0.000000e+00> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  // Constants are made in chunks.
  // CHECK: %[[RATE:.*]] = stablehlo.constant dense<1.000000e-01> : tensor<8x3x16xf32>
  %rate = stablehlo.constant dense<0.1> : tensor<8x48xf32>
  // CHECK: %[[Y:.*]] = stablehlo.dot_general %[[X]], %[[W]], contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x3x16xf32>) -> tensor<4x3x16xf32>
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x48xf32>) -> tensor<4x48xf32>
  // CHECK: %[[BB:.*]] = stablehlo.broadcast_in_dim %[[B]], dims = [1, 2] : (tensor<3x16xf32>) -> tensor<4x3x16xf32>
  %1 = stablehlo.broadcast_in_dim %b, dims = [1] : (tensor<48xf32>) -> tensor<4x48xf32>
  // CHECK: %[[YB:.*]] = stablehlo.add %[[Y]], %[[BB]] : tensor<4x3x16xf32>
  %2 = stablehlo.add %0, %1 : tensor<4x48xf32>
  // Each cut takes whole chunks, so none of them cuts what will be sharded.
  // CHECK: %[[Q1:.*]] = stablehlo.slice %[[YB]] [0:4, 0:1, 0:16] : (tensor<4x3x16xf32>) -> tensor<4x1x16xf32>
  // CHECK: %[[Q:.*]] = stablehlo.reshape %[[Q1]] : (tensor<4x1x16xf32>) -> tensor<4x16xf32>
  %q = stablehlo.slice %2 [0:4, 0:16] : (tensor<4x48xf32>) -> tensor<4x16xf32>
  // CHECK: stablehlo.slice %[[YB]] [0:4, 1:2, 0:16]
  %k = stablehlo.slice %2 [0:4, 16:32] : (tensor<4x48xf32>) -> tensor<4x16xf32>
  // CHECK: stablehlo.slice %[[YB]] [0:4, 2:3, 0:16]
  %v = stablehlo.slice %2 [0:4, 32:48] : (tensor<4x48xf32>) -> tensor<4x16xf32>
  %3 = stablehlo.multiply %q, %k : tensor<4x16xf32>
  %4 = stablehlo.multiply %3, %v : tensor<4x16xf32>
  %5 = stablehlo.dot_general %4, %o, contracting_dims = [1] x [0] : (tensor<4x16xf32>, tensor<16x8xf32>) -> tensor<4x8xf32>
  %6 = stablehlo.dot_general %5, %o, contracting_dims = [1] x [1] : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
  // Gradients of the pieces come back as chunks.
  // CHECK: %[[D:.*]] = stablehlo.reshape %{{.*}} : (tensor<4x16xf32>) -> tensor<4x1x16xf32>
  // CHECK: %[[DY:.*]] = stablehlo.concatenate %{{.*}}, %{{.*}}, %{{.*}}, dim = 1 : (tensor<4x1x16xf32>, tensor<4x1x16xf32>, tensor<4x1x16xf32>) -> tensor<4x3x16xf32>
  %7 = stablehlo.concatenate %6, %6, %6, dim = 1 : (tensor<4x16xf32>, tensor<4x16xf32>, tensor<4x16xf32>) -> tensor<4x48xf32>
  // CHECK: stablehlo.reduce(%[[DY]] init: %[[ZERO]]) applies stablehlo.add across dimensions = [0] : (tensor<4x3x16xf32>, tensor<f32>) -> tensor<3x16xf32>
  %8 = stablehlo.reduce(%7 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<4x48xf32>, tensor<f32>) -> tensor<48xf32>
  // CHECK: %[[DW:.*]] = stablehlo.dot_general %[[DY]], %[[X]], contracting_dims = [0] x [0] : (tensor<4x3x16xf32>, tensor<4x8xf32>) -> tensor<3x16x8xf32>
  %9 = stablehlo.dot_general %7, %x, contracting_dims = [0] x [0] : (tensor<4x48xf32>, tensor<4x8xf32>) -> tensor<48x8xf32>
  // CHECK: stablehlo.transpose %[[DW]], dims = [2, 0, 1] : (tensor<3x16x8xf32>) -> tensor<8x3x16xf32>
  %10 = stablehlo.transpose %9, dims = [1, 0] : (tensor<48x8xf32>) -> tensor<8x48xf32>
  // The gradient of the input contracts over both dimensions.
  // CHECK: %[[DX:.*]] = stablehlo.dot_general %[[DY]], %[[W]], contracting_dims = [1, 2] x [1, 2] : (tensor<4x3x16xf32>, tensor<8x3x16xf32>) -> tensor<4x8xf32>
  %11 = stablehlo.dot_general %7, %w, contracting_dims = [1] x [1] : (tensor<4x48xf32>, tensor<8x48xf32>) -> tensor<4x8xf32>
  // CHECK: stablehlo.add %[[M]], %{{.*}} : tensor<8x3x16xf32>
  %12 = stablehlo.add %m, %10 : tensor<8x48xf32>
  // CHECK: stablehlo.multiply %[[RATE]], %{{.*}} : tensor<8x3x16xf32>
  %13 = stablehlo.multiply %rate, %12 : tensor<8x48xf32>
  %14 = stablehlo.subtract %w, %13 : tensor<8x48xf32>
  %15 = stablehlo.subtract %b, %8 : tensor<48xf32>
  // CHECK: return %{{.*}}, %{{.*}}, %{{.*}}, %[[DX]] : tensor<8x3x16xf32>, tensor<3x16xf32>, tensor<8x3x16xf32>, tensor<4x8xf32>
  return %14, %15, %12, %11 : tensor<8x48xf32>, tensor<48xf32>, tensor<8x48xf32>, tensor<4x8xf32>
}
