// Calls are looked through, each with its own arguments: @scale is called with a parameter and with optimizer state.
// RUN: rhino-opt %s --rhino-classify-args -o %t.calls
// RUN: rhino-opt %s --inline --symbol-dce --rhino-classify-args -o %t.inlined
// RUN: filecheck %s --input-file %t.calls
// RUN: filecheck %s --input-file %t.inlined

// CHECK: func.func @main
// CHECK-SAME: tensor<8x4xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32}
// CHECK-SAME: tensor<8x4xf32> {rhino.role = "opt_state", tf.aliasing_output = 1 : i32}
// CHECK-SAME: tensor<16x8xf32> {rhino.role = "batch"}
func.func @main(%w: tensor<8x4xf32> {tf.aliasing_output = 0 : i32}, %m: tensor<8x4xf32> {tf.aliasing_output = 1 : i32},
                %x: tensor<16x8xf32>) -> (tensor<8x4xf32>, tensor<8x4xf32>, tensor<16x4xf32>) {
  %0 = func.call @scale(%w) : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %1 = func.call @apply(%x, %0) : (tensor<16x8xf32>, tensor<8x4xf32>) -> tensor<16x4xf32>
  %2 = stablehlo.dot_general %x, %1, contracting_dims = [0] x [0] : (tensor<16x8xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  %3 = func.call @scale(%m) : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %4 = stablehlo.add %3, %2 : tensor<8x4xf32>
  %5 = stablehlo.subtract %w, %4 : tensor<8x4xf32>
  return %5, %4, %1 : tensor<8x4xf32>, tensor<8x4xf32>, tensor<16x4xf32>
}
func.func private @scale(%v: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %0 = stablehlo.add %v, %v : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
func.func private @apply(%x: tensor<16x8xf32>, %w: tensor<8x4xf32>) -> tensor<16x4xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x4xf32>) -> tensor<16x4xf32>
  return %0 : tensor<16x4xf32>
}
