// A step whose examples need each other is a pipeline of one micro-batch, and is told so.
// RUN: rhino-opt %s --rhino-plan-pipeline="topology=dgx-h100:1 stages=2" --verify-diagnostics -o - | filecheck %s

// CHECK: rhino.plan = {{.*}}microbatches = 1 : i64
func.func @main(%w: tensor<4x4xf32> {rhino.role = "param"}, %v: tensor<4x4xf32> {rhino.role = "param"}, %x: tensor<8x4xf32> {rhino.role = "batch"}) -> tensor<8x8xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  // expected-warning @+2 {{brings examples together with other examples: its operands hold them along different dimensions; so the pipeline has one micro-batch, and its stages wait for each other}}
  // expected-note @+1 {{or compute this within single examples}}
  %pairs = stablehlo.dot_general %y, %y, contracting_dims = [1] x [1] : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x8xf32>
  return %pairs : tensor<8x8xf32>
}
