// Pieces taken out by slices and put back by pads; some are cut again.
// RUN: rhino-opt %s --split-input-file --rhino-expose-strided-dims | filecheck %s

// Gate and up, forward and backward: the pads of the gradient go along the chunks. Without roles, a matrix is state.
// CHECK: @main(%{{.*}}: tensor<8x2x16xf32> {rhino.strided
func.func @main(%w: tensor<8x32xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<4x8xf32> {rhino.role = "batch"}) -> tensor<8x32xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x32xf32>) -> tensor<4x32xf32>
  // CHECK: stablehlo.slice %{{.*}} [0:4, 0:1, 0:16] : (tensor<4x2x16xf32>) -> tensor<4x1x16xf32>
  %gate = stablehlo.slice %0 [0:4, 0:16] : (tensor<4x32xf32>) -> tensor<4x16xf32>
  // CHECK: stablehlo.slice %{{.*}} [0:4, 1:2, 0:16] : (tensor<4x2x16xf32>) -> tensor<4x1x16xf32>
  %up = stablehlo.slice %0 [0:4, 16:32] : (tensor<4x32xf32>) -> tensor<4x16xf32>
  // CHECK: stablehlo.pad %{{.*}}, %{{.*}}, low = [0, 1, 0], high = [0, 0, 0], interior = [0, 0, 0] : (tensor<4x1x16xf32>, tensor<f32>) -> tensor<4x2x16xf32>
  %1 = stablehlo.pad %gate, %zero, low = [0, 16], high = [0, 0], interior = [0, 0] : (tensor<4x16xf32>, tensor<f32>) -> tensor<4x32xf32>
  // CHECK: stablehlo.pad %{{.*}}, %{{.*}}, low = [0, 0, 0], high = [0, 1, 0], interior = [0, 0, 0] : (tensor<4x1x16xf32>, tensor<f32>) -> tensor<4x2x16xf32>
  %2 = stablehlo.pad %up, %zero, low = [0, 0], high = [0, 16], interior = [0, 0] : (tensor<4x16xf32>, tensor<f32>) -> tensor<4x32xf32>
  %3 = stablehlo.add %1, %2 : tensor<4x32xf32>
  %4 = stablehlo.dot_general %x, %3, contracting_dims = [0] x [0] : (tensor<4x8xf32>, tensor<4x32xf32>) -> tensor<8x32xf32>
  %5 = stablehlo.subtract %w, %4 : tensor<8x32xf32>
  return %5 : tensor<8x32xf32>
}

// -----

// Queries are cut off first, then keys from values: what holds two chunks keeps them apart.
// CHECK: @main(%{{.*}}: tensor<8x3x16xf32> {
func.func @main(%w: tensor<8x48xf32> {rhino.role = "param"}, %x: tensor<4x8xf32> {rhino.role = "batch"}) -> tensor<4x16xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x48xf32>) -> tensor<4x48xf32>
  // CHECK: stablehlo.slice %{{.*}} [0:4, 0:1, 0:16]
  %q = stablehlo.slice %0 [0:4, 0:16] : (tensor<4x48xf32>) -> tensor<4x16xf32>
  // CHECK: %[[KV:.*]] = stablehlo.slice %{{.*}} [0:4, 1:3, 0:16] : (tensor<4x3x16xf32>) -> tensor<4x2x16xf32>
  %kv = stablehlo.slice %0 [0:4, 16:48] : (tensor<4x48xf32>) -> tensor<4x32xf32>
  // CHECK: stablehlo.slice %[[KV]] [0:4, 0:1, 0:16] : (tensor<4x2x16xf32>) -> tensor<4x1x16xf32>
  %k = stablehlo.slice %kv [0:4, 0:16] : (tensor<4x32xf32>) -> tensor<4x16xf32>
  // CHECK: stablehlo.slice %[[KV]] [0:4, 1:2, 0:16] : (tensor<4x2x16xf32>) -> tensor<4x1x16xf32>
  %v = stablehlo.slice %kv [0:4, 16:32] : (tensor<4x32xf32>) -> tensor<4x16xf32>
  %1 = stablehlo.multiply %q, %k : tensor<4x16xf32>
  %2 = stablehlo.multiply %1, %v : tensor<4x16xf32>
  return %2 : tensor<4x16xf32>
}

// -----

// Halves that are halved again: the quarters are the chunks.
// CHECK: @main(%{{.*}}: tensor<8x4x8xf32> {
func.func @main(%w: tensor<8x32xf32> {rhino.role = "param"}, %x: tensor<4x8xf32> {rhino.role = "batch"}) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x32xf32>) -> tensor<4x32xf32>
  // CHECK: %[[A:.*]] = stablehlo.slice %{{.*}} [0:4, 0:2, 0:8] : (tensor<4x4x8xf32>) -> tensor<4x2x8xf32>
  %a = stablehlo.slice %0 [0:4, 0:16] : (tensor<4x32xf32>) -> tensor<4x16xf32>
  %b = stablehlo.slice %0 [0:4, 16:32] : (tensor<4x32xf32>) -> tensor<4x16xf32>
  // CHECK: stablehlo.slice %[[A]] [0:4, 0:1, 0:8]
  %a0 = stablehlo.slice %a [0:4, 0:8] : (tensor<4x16xf32>) -> tensor<4x8xf32>
  %a1 = stablehlo.slice %a [0:4, 8:16] : (tensor<4x16xf32>) -> tensor<4x8xf32>
  %b0 = stablehlo.slice %b [0:4, 0:8] : (tensor<4x16xf32>) -> tensor<4x8xf32>
  %b1 = stablehlo.slice %b [0:4, 8:16] : (tensor<4x16xf32>) -> tensor<4x8xf32>
  %1 = stablehlo.multiply %a0, %a1 : tensor<4x8xf32>
  %2 = stablehlo.multiply %b0, %b1 : tensor<4x8xf32>
  return %1, %2 : tensor<4x8xf32>, tensor<4x8xf32>
}
