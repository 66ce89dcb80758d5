// Fine-tuning: the frozen base is not returned, but used as a weight, so it is a parameter like the adapter that is trained.
// RUN: rhino-opt %s --rhino-classify-args | filecheck %s

// CHECK: func.func @main
// CHECK-SAME: tensor<8x4xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32}
// CHECK-SAME: tensor<8x4xf32> {rhino.role = "param"}
// CHECK-SAME: tensor<16x8xf32> {rhino.role = "batch"}
func.func @main(%adapter: tensor<8x4xf32> {tf.aliasing_output = 0 : i32}, %base: tensor<8x4xf32>, %x: tensor<16x8xf32>)
    -> (tensor<8x4xf32>, tensor<16x4xf32>) {
  %0 = stablehlo.add %base, %adapter : tensor<8x4xf32>
  %1 = stablehlo.dot_general %x, %0, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x4xf32>) -> tensor<16x4xf32>
  %2 = stablehlo.dot_general %x, %1, contracting_dims = [0] x [0] : (tensor<16x8xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  %3 = stablehlo.subtract %adapter, %2 : tensor<8x4xf32>
  return %3, %1 : tensor<8x4xf32>, tensor<16x4xf32>
}
