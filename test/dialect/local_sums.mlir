// rhino.sums: what sums a micro-batch's examples, each local sum over its share of them.
// RUN: rhino-opt %s --rhino-verify | filecheck %s

func.func @main(%x: tensor<8x3xf32>) -> tensor<4x3x3xf32> {
  %0 = stablehlo.reshape %x : (tensor<8x3xf32>) -> tensor<4x2x3xf32>
  // CHECK: stablehlo.dot_general
  // CHECK-SAME: {rhino.sums = 4 : i64}
  %1 = stablehlo.dot_general %0, %0, batching_dims = [0] x [0], contracting_dims = [1] x [1] {rhino.sums = 4 : i64} : (tensor<4x2x3xf32>, tensor<4x2x3xf32>) -> tensor<4x3x3xf32>
  return %1 : tensor<4x3x3xf32>
}
