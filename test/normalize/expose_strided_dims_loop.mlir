// A scan over layers: stacked weights are read one layer at a time, and gradients are written likewise.
// RUN: rhino-opt %s --rhino-expose-strided-dims | filecheck %s

// CHECK: @main(%[[W:.*]]: tensor<3x8x2x4xf32> {rhino.role = "param", rhino.strided = {dims = [{dim = 2 : i64, factors = [2, 4]}], shape = [3, 8, 8]}
func.func @main(%w: tensor<3x8x8xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32}, %o: tensor<4x8xf32> {rhino.role = "param"},
                %x: tensor<16x8xf32> {rhino.role = "batch"}) -> tensor<3x8x8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  // CHECK: %[[G:.*]] = stablehlo.constant dense<0.000000e+00> : tensor<3x8x2x4xf32>
  %g = stablehlo.constant dense<0.0> : tensor<3x8x8xf32>
  // CHECK: stablehlo.while(%[[I:.*]] = %{{.*}}, %{{.*}} = %{{.*}}, %[[WS:.*]] = %[[W]], %[[GS:.*]] = %[[G]]) : tensor<i32>, tensor<16x8xf32>, tensor<3x8x2x4xf32>, tensor<3x8x2x4xf32>
  %0:4 = stablehlo.while(%i = %zero, %h = %x, %ws = %w, %gs = %g) : tensor<i32>, tensor<16x8xf32>, tensor<3x8x8xf32>, tensor<3x8x8xf32>
  cond {
    %c = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    // CHECK: stablehlo.dynamic_slice %[[WS]], %[[I]], %[[Z:.*]], %[[Z]], %[[Z]], sizes = [1, 8, 2, 4]
    %1 = stablehlo.dynamic_slice %ws, %i, %zero, %zero, sizes = [1, 8, 8] : (tensor<3x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x8xf32>
    // CHECK: stablehlo.reshape %{{.*}} : (tensor<1x8x2x4xf32>) -> tensor<8x2x4xf32>
    %2 = stablehlo.reshape %1 : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
    %3 = stablehlo.dot_general %h, %2, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x8xf32>) -> tensor<16x8xf32>
    // CHECK: stablehlo.slice %{{.*}} [0:16, 0:1, 0:4] : (tensor<16x2x4xf32>) -> tensor<16x1x4xf32>
    %4 = stablehlo.slice %3 [0:16, 0:4] : (tensor<16x8xf32>) -> tensor<16x4xf32>
    %5 = stablehlo.slice %3 [0:16, 4:8] : (tensor<16x8xf32>) -> tensor<16x4xf32>
    %6 = stablehlo.multiply %4, %5 : tensor<16x4xf32>
    %7 = stablehlo.dot_general %6, %o, contracting_dims = [1] x [0] : (tensor<16x4xf32>, tensor<4x8xf32>) -> tensor<16x8xf32>
    %8 = stablehlo.dot_general %h, %3, contracting_dims = [0] x [0] : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
    // CHECK: stablehlo.broadcast_in_dim %{{.*}}, dims = [1, 2, 3] : (tensor<8x2x4xf32>) -> tensor<1x8x2x4xf32>
    %9 = stablehlo.broadcast_in_dim %8, dims = [1, 2] : (tensor<8x8xf32>) -> tensor<1x8x8xf32>
    // CHECK: stablehlo.dynamic_update_slice %[[GS]], %{{.*}}, %[[I]], %[[Z]], %[[Z]], %[[Z]] : (tensor<3x8x2x4xf32>, tensor<1x8x2x4xf32>
    %10 = stablehlo.dynamic_update_slice %gs, %9, %i, %zero, %zero : (tensor<3x8x8xf32>, tensor<1x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x8x8xf32>
    %11 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %11, %7, %ws, %10 : tensor<i32>, tensor<16x8xf32>, tensor<3x8x8xf32>, tensor<3x8x8xf32>
  }
  // CHECK: stablehlo.subtract %[[W]], %{{.*}} : tensor<3x8x2x4xf32>
  %12 = stablehlo.subtract %w, %0#3 : tensor<3x8x8xf32>
  return %12 : tensor<3x8x8xf32>
}
