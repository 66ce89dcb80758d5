// Reshapes whose leading dimension is indexed, and their backward passes.
// RUN: rhino-opt %s --split-input-file --rhino-expose-strided-dims | filecheck %s

// '(three heads head) -> three heads head', then an index, as einops and numpy style write it.
// CHECK: @main(%{{.*}}: tensor<8x3x16xf32> {
func.func @main(%w: tensor<8x48xf32> {rhino.role = "param"}, %x: tensor<4x8xf32> {rhino.role = "batch"}) -> tensor<4x2x8xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x48xf32>) -> tensor<4x48xf32>
  // CHECK: stablehlo.reshape %{{.*}} : (tensor<4x3x16xf32>) -> tensor<4x3x2x8xf32>
  %1 = stablehlo.reshape %0 : (tensor<4x48xf32>) -> tensor<4x3x2x8xf32>
  %2 = stablehlo.transpose %1, dims = [1, 0, 2, 3] : (tensor<4x3x2x8xf32>) -> tensor<3x4x2x8xf32>
  %q = stablehlo.slice %2 [0:1, 0:4, 0:2, 0:8] : (tensor<3x4x2x8xf32>) -> tensor<1x4x2x8xf32>
  %k = stablehlo.slice %2 [1:2, 0:4, 0:2, 0:8] : (tensor<3x4x2x8xf32>) -> tensor<1x4x2x8xf32>
  %v = stablehlo.slice %2 [2:3, 0:4, 0:2, 0:8] : (tensor<3x4x2x8xf32>) -> tensor<1x4x2x8xf32>
  %3 = stablehlo.multiply %q, %k : tensor<1x4x2x8xf32>
  %4 = stablehlo.multiply %3, %v : tensor<1x4x2x8xf32>
  %5 = stablehlo.reshape %4 : (tensor<1x4x2x8xf32>) -> tensor<4x2x8xf32>
  return %5 : tensor<4x2x8xf32>
}

// -----

// A reshape to exactly the chunks is what the projection makes by itself.
// CHECK: @main(%{{.*}}: tensor<8x3x16xf32> {
func.func @main(%w: tensor<8x48xf32> {rhino.role = "param"}, %x: tensor<4x8xf32> {rhino.role = "batch"}) -> tensor<4x1x16xf32> {
  // CHECK: %[[Y:.*]] = stablehlo.dot_general
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x48xf32>) -> tensor<4x48xf32>
  %1 = stablehlo.reshape %0 : (tensor<4x48xf32>) -> tensor<4x3x16xf32>
  // CHECK-NEXT: stablehlo.slice %[[Y]] [0:4, 0:1, 0:16]
  %q = stablehlo.slice %1 [0:4, 0:1, 0:16] : (tensor<4x3x16xf32>) -> tensor<4x1x16xf32>
  %k = stablehlo.slice %1 [0:4, 1:2, 0:16] : (tensor<4x3x16xf32>) -> tensor<4x1x16xf32>
  %v = stablehlo.slice %1 [0:4, 2:3, 0:16] : (tensor<4x3x16xf32>) -> tensor<4x1x16xf32>
  %2 = stablehlo.multiply %q, %k : tensor<4x1x16xf32>
  %3 = stablehlo.multiply %2, %v : tensor<4x1x16xf32>
  return %3 : tensor<4x1x16xf32>
}

// -----

// All heads of queries, keys and values in one dimension of 6, then cut in three: heads are kept in chunks too.
// CHECK: @main(%{{.*}}: tensor<8x3x16xf32> {
func.func @main(%w: tensor<8x48xf32> {rhino.role = "param"}, %x: tensor<4x8xf32> {rhino.role = "batch"}) -> tensor<4x2x8xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x48xf32>) -> tensor<4x48xf32>
  // CHECK: stablehlo.reshape %{{.*}} : (tensor<4x3x16xf32>) -> tensor<4x3x2x8xf32>
  %1 = stablehlo.reshape %0 : (tensor<4x48xf32>) -> tensor<4x6x8xf32>
  // CHECK: stablehlo.slice %{{.*}} [0:4, 0:1, 0:2, 0:8]
  %q = stablehlo.slice %1 [0:4, 0:2, 0:8] : (tensor<4x6x8xf32>) -> tensor<4x2x8xf32>
  %k = stablehlo.slice %1 [0:4, 2:4, 0:8] : (tensor<4x6x8xf32>) -> tensor<4x2x8xf32>
  %v = stablehlo.slice %1 [0:4, 4:6, 0:8] : (tensor<4x6x8xf32>) -> tensor<4x2x8xf32>
  %2 = stablehlo.multiply %q, %k : tensor<4x2x8xf32>
  %3 = stablehlo.multiply %2, %v : tensor<4x2x8xf32>
  return %3 : tensor<4x2x8xf32>
}

// -----

// The backward pass of indexing: pads along an explicit dimension, merged into the gradient of the projection.
// CHECK: @main(%{{.*}}: tensor<8x2x16xf32> {
func.func @main(%w: tensor<8x32xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32}, %x: tensor<4x8xf32> {rhino.role = "batch"},
                %a: tensor<4x1x4x4xf32>, %b: tensor<4x1x4x4xf32>) -> tensor<8x32xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.pad %a, %zero, low = [0, 1, 0, 0], high = [0, 0, 0, 0], interior = [0, 0, 0, 0] : (tensor<4x1x4x4xf32>, tensor<f32>) -> tensor<4x2x4x4xf32>
  %1 = stablehlo.pad %b, %zero, low = [0, 0, 0, 0], high = [0, 1, 0, 0], interior = [0, 0, 0, 0] : (tensor<4x1x4x4xf32>, tensor<f32>) -> tensor<4x2x4x4xf32>
  %2 = stablehlo.add %0, %1 : tensor<4x2x4x4xf32>
  // CHECK: stablehlo.reshape %{{.*}} : (tensor<4x2x4x4xf32>) -> tensor<4x2x16xf32>
  %3 = stablehlo.reshape %2 : (tensor<4x2x4x4xf32>) -> tensor<4x32xf32>
  %4 = stablehlo.dot_general %x, %3, contracting_dims = [0] x [0] : (tensor<4x8xf32>, tensor<4x32xf32>) -> tensor<8x32xf32>
  %5 = stablehlo.dot_general %3, %w, contracting_dims = [1] x [1] : (tensor<4x32xf32>, tensor<8x32xf32>) -> tensor<4x8xf32>
  %6 = stablehlo.subtract %w, %4 : tensor<8x32xf32>
  return %6 : tensor<8x32xf32>
}
