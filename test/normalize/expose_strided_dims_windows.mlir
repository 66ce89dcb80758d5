// Windows whose start is a constant cut like slices, and updates of them put pieces back.
// RUN: rhino-opt %s --rhino-expose-strided-dims | filecheck %s

// CHECK: @main(%{{.*}}: tensor<8x2x4xf32> {rhino.role = "param"
func.func @main(%w: tensor<8x8xf32> {rhino.role = "param"}, %x: tensor<6x8xf32> {rhino.role = "batch"}, %i: tensor<i32>) -> tensor<2x4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %four = stablehlo.constant dense<4> : tensor<i32>
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<6x8xf32>, tensor<8x8xf32>) -> tensor<6x8xf32>
  // CHECK: %[[C:.*]] = stablehlo.constant dense<1> : tensor<i32>
  // CHECK: %[[Z:.*]] = stablehlo.constant dense<0> : tensor<i32>
  // CHECK: stablehlo.dynamic_slice %{{.*}}, %{{.*}}, %[[C]], %[[Z]], sizes = [2, 1, 4] : (tensor<6x2x4xf32>
  // CHECK: stablehlo.reshape %{{.*}} : (tensor<2x1x4xf32>) -> tensor<2x4xf32>
  %1 = stablehlo.dynamic_slice %0, %i, %four, sizes = [2, 4] : (tensor<6x8xf32>, tensor<i32>, tensor<i32>) -> tensor<2x4xf32>
  %2 = stablehlo.dynamic_slice %0, %i, %zero, sizes = [2, 4] : (tensor<6x8xf32>, tensor<i32>, tensor<i32>) -> tensor<2x4xf32>
  // CHECK: stablehlo.dynamic_update_slice %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}} : (tensor<6x2x4xf32>, tensor<2x1x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<6x2x4xf32>
  %3 = stablehlo.dynamic_update_slice %0, %1, %i, %zero : (tensor<6x8xf32>, tensor<2x4xf32>, tensor<i32>, tensor<i32>) -> tensor<6x8xf32>
  %4 = stablehlo.slice %3 [0:2, 0:4] : (tensor<6x8xf32>) -> tensor<2x4xf32>
  %5 = stablehlo.add %4, %2 : tensor<2x4xf32>
  return %5 : tensor<2x4xf32>
}
