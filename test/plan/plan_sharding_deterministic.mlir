// The same input gives the same text, whatever the hash seed of the process.
// RUN: env PYTHONHASHSEED=1 rhino-opt %s --rhino-auto=topology=dgx-h100:2 -o %t.1.mlir
// RUN: env PYTHONHASHSEED=2 rhino-opt %s --rhino-auto=topology=dgx-h100:2 -o %t.2.mlir
// RUN: diff %t.1.mlir %t.2.mlir
// RUN: filecheck %s --input-file %t.1.mlir

// CHECK: sdy.mesh @mesh
func.func @main(%w1: tensor<512x2048xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32},
                %w2: tensor<2048x512xf32> {rhino.role = "param", tf.aliasing_output = 1 : i32},
                %x: tensor<4096x512xf32> {rhino.role = "batch"}, %y: tensor<4096x512xf32> {rhino.role = "batch"})
    -> (tensor<512x2048xf32>, tensor<2048x512xf32>) {
  // Forward.
  %h = stablehlo.dot_general %x, %w1, contracting_dims = [1] x [0] : (tensor<4096x512xf32>, tensor<512x2048xf32>) -> tensor<4096x2048xf32>
  %t = stablehlo.tanh %h : tensor<4096x2048xf32>
  %p = stablehlo.dot_general %t, %w2, contracting_dims = [1] x [0] : (tensor<4096x2048xf32>, tensor<2048x512xf32>) -> tensor<4096x512xf32>
  %e = stablehlo.subtract %p, %y : tensor<4096x512xf32>
  // Backward.
  %g2 = stablehlo.dot_general %t, %e, contracting_dims = [0] x [0] : (tensor<4096x2048xf32>, tensor<4096x512xf32>) -> tensor<2048x512xf32>
  %dt = stablehlo.dot_general %e, %w2, contracting_dims = [1] x [1] : (tensor<4096x512xf32>, tensor<2048x512xf32>) -> tensor<4096x2048xf32>
  %dh = stablehlo.multiply %dt, %t : tensor<4096x2048xf32>
  %g1 = stablehlo.dot_general %x, %dh, contracting_dims = [0] x [0] : (tensor<4096x512xf32>, tensor<4096x2048xf32>) -> tensor<512x2048xf32>
  // Update.
  %n1 = stablehlo.subtract %w1, %g1 : tensor<512x2048xf32>
  %n2 = stablehlo.subtract %w2, %g2 : tensor<2048x512xf32>
  return %n1, %n2 : tensor<512x2048xf32>, tensor<2048x512xf32>
}
