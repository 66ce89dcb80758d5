// What keeps its type: data, results that take no parameter's buffer, whole numbers. A reshape stands between.
// RUN: rhino-opt %s --rhino-expose-strided-dims | filecheck %s

// CHECK: @main(%{{.*}}: tensor<8x2x4xf32> {{{.*}}}, %{{.*}}: tensor<8xi8> {rhino.role = "param"}, %[[BIAS:.*]]: tensor<6x8xf32> {rhino.role = "batch"}, %{{.*}}: tensor<6x8xf32> {rhino.role = "batch"}) -> (tensor<8x8xf32>, tensor<6x8xf32>, tensor<6x4xf32>)
func.func @main(%w: tensor<8x8xf32> {rhino.role = "param"}, %mask: tensor<8xi8> {rhino.role = "param"}, %bias: tensor<6x8xf32> {rhino.role = "batch"}, %x: tensor<6x8xf32> {rhino.role = "batch"})
    -> (tensor<8x8xf32>, tensor<6x8xf32>, tensor<6x4xf32>) {
  // CHECK-DAG: stablehlo.reshape %[[BIAS]] : (tensor<6x8xf32>) -> tensor<6x2x4xf32>
  // CHECK-DAG: stablehlo.reshape %{{.*}} : (tensor<8xi8>) -> tensor<2x4xi8>
  // A constant with many values is reshaped.
  // CHECK: stablehlo.constant dense<[1.0
  // CHECK: stablehlo.reshape %{{.*}} : (tensor<8xf32>) -> tensor<2x4xf32>
  %many = stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]> : tensor<8xf32>
  %0 = stablehlo.convert %mask : (tensor<8xi8>) -> tensor<8xf32>
  %1 = stablehlo.multiply %0, %many : tensor<8xf32>
  %2 = stablehlo.broadcast_in_dim %1, dims = [1] : (tensor<8xf32>) -> tensor<6x8xf32>
  %3 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<6x8xf32>, tensor<8x8xf32>) -> tensor<6x8xf32>
  %4 = stablehlo.add %3, %bias : tensor<6x8xf32>
  %5 = stablehlo.add %4, %2 : tensor<6x8xf32>
  %6 = stablehlo.slice %5 [0:6, 0:4] : (tensor<6x8xf32>) -> tensor<6x4xf32>
  %7 = stablehlo.slice %5 [0:6, 4:8] : (tensor<6x8xf32>) -> tensor<6x4xf32>
  %8 = stablehlo.add %6, %7 : tensor<6x4xf32>
  %9 = stablehlo.add %w, %w : tensor<8x8xf32>
  // CHECK: stablehlo.reshape %{{.*}} : (tensor<8x2x4xf32>) -> tensor<8x8xf32>
  // CHECK: stablehlo.reshape %{{.*}} : (tensor<6x2x4xf32>) -> tensor<6x8xf32>
  return %9, %5, %8 : tensor<8x8xf32>, tensor<6x8xf32>, tensor<6x4xf32>
}
