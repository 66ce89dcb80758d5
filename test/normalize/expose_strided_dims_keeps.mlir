// Programs that must stay exactly as they are.
// RUN: rhino-opt %s --split-input-file --rhino-expose-strided-dims | filecheck %s

// A position table of which a prefix is read: the piece does not cover it.
// CHECK: @main(%{{.*}}: tensor<16x8xf32> {rhino.role = "param"}, %{{.*}}: tensor<8x8xf32> {rhino.role = "param"})
func.func @main(%table: tensor<16x8xf32> {rhino.role = "param"}, %w: tensor<8x8xf32> {rhino.role = "param"}) -> tensor<8x8xf32> {
  %0 = stablehlo.slice %table [0:8, 0:8] : (tensor<16x8xf32>) -> tensor<8x8xf32>
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = stablehlo.dot_general %1, %table, contracting_dims = [1] x [1] : (tensor<8x8xf32>, tensor<16x8xf32>) -> tensor<8x16xf32>
  return %1 : tensor<8x8xf32>
}

// -----

// Heads are never cut: contiguous sharding of them is right. Neither is (heads, three): every head has all three.
// CHECK: @main(%{{.*}}: tensor<8x24xf32> {rhino.role = "param"}
func.func @main(%w: tensor<8x24xf32> {rhino.role = "param"}, %x: tensor<4x8xf32>) -> tensor<4x4x2xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x24xf32>) -> tensor<4x24xf32>
  %1 = stablehlo.reshape %0 : (tensor<4x24xf32>) -> tensor<4x4x6xf32>
  %q = stablehlo.slice %1 [0:4, 0:4, 0:2] : (tensor<4x4x6xf32>) -> tensor<4x4x2xf32>
  %k = stablehlo.slice %1 [0:4, 0:4, 2:4] : (tensor<4x4x6xf32>) -> tensor<4x4x2xf32>
  %v = stablehlo.slice %1 [0:4, 0:4, 4:6] : (tensor<4x4x6xf32>) -> tensor<4x4x2xf32>
  %2 = stablehlo.multiply %q, %k : tensor<4x4x2xf32>
  %3 = stablehlo.multiply %2, %v : tensor<4x4x2xf32>
  return %3 : tensor<4x4x2xf32>
}

// -----

// Rotary embedding cuts a head in halves. The only parameter that has this dimension is a scale, which no contraction
// reads: splitting it would bring nothing.
// CHECK: @main(%{{.*}}: tensor<8x16xf32> {rhino.role = "param"}, %{{.*}}: tensor<4xf32> {rhino.role = "param"}
func.func @main(%w: tensor<8x16xf32> {rhino.role = "param"}, %scale: tensor<4xf32> {rhino.role = "param"}, %x: tensor<2x8xf32>) -> tensor<2x2xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<2x8xf32>, tensor<8x16xf32>) -> tensor<2x16xf32>
  %1 = stablehlo.reshape %0 : (tensor<2x16xf32>) -> tensor<2x4x4xf32>
  %2 = stablehlo.broadcast_in_dim %scale, dims = [2] : (tensor<4xf32>) -> tensor<2x4x4xf32>
  %3 = stablehlo.multiply %1, %2 : tensor<2x4x4xf32>
  %4 = stablehlo.slice %3 [0:2, 0:4, 0:2] : (tensor<2x4x4xf32>) -> tensor<2x4x2xf32>
  %5 = stablehlo.slice %3 [0:2, 0:4, 2:4] : (tensor<2x4x4xf32>) -> tensor<2x4x2xf32>
  %6 = stablehlo.multiply %4, %5 : tensor<2x4x2xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %7 = stablehlo.reduce(%6 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<2x4x2xf32>, tensor<f32>) -> tensor<2x2xf32>
  return %7 : tensor<2x2xf32>
}

// -----

// Layers of a stack taken one by one: chunks of one are explicit already.
// CHECK: @main(%{{.*}}: tensor<2x8x8xf32> {rhino.role = "param"}
func.func @main(%w: tensor<2x8x8xf32> {rhino.role = "param"}, %x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %0 = stablehlo.slice %w [0:1, 0:8, 0:8] : (tensor<2x8x8xf32>) -> tensor<1x8x8xf32>
  %1 = stablehlo.reshape %0 : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
  %2 = stablehlo.dot_general %x, %1, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %3 = stablehlo.slice %w [1:2, 0:8, 0:8] : (tensor<2x8x8xf32>) -> tensor<1x8x8xf32>
  %4 = stablehlo.reshape %3 : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
  %5 = stablehlo.dot_general %2, %4, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  return %5 : tensor<4x8xf32>
}

// -----

// Halves of the batch: no parameter has this dimension.
// CHECK: @main(%{{.*}}: tensor<8x8xf32> {rhino.role = "param"}, %{{.*}}: tensor<4x8xf32> {rhino.role = "batch"})
func.func @main(%w: tensor<8x8xf32> {rhino.role = "param"}, %x: tensor<4x8xf32> {rhino.role = "batch"}) -> tensor<2x8xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %1 = stablehlo.slice %0 [0:2, 0:8] : (tensor<4x8xf32>) -> tensor<2x8xf32>
  %2 = stablehlo.slice %0 [2:4, 0:8] : (tensor<4x8xf32>) -> tensor<2x8xf32>
  %3 = stablehlo.add %1, %2 : tensor<2x8xf32>
  return %3 : tensor<2x8xf32>
}
