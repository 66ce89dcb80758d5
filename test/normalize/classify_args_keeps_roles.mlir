// Roles already given are kept, whatever dataflow says; the rest is classified as always.
// RUN: rhino-opt %s --rhino-classify-args | filecheck %s

// CHECK: func.func @main(%{{.*}}: tensor<8x4xf32> {rhino.role = "other"}, %{{.*}}: tensor<16x8xf32> {rhino.role = "batch"})
func.func @main(%w: tensor<8x4xf32> {rhino.role = "other"}, %x: tensor<16x8xf32>) -> tensor<16x4xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x4xf32>) -> tensor<16x4xf32>
  return %0 : tensor<16x4xf32>
}
