// A step whose examples need each other is a pipeline of one micro-batch, and is told so.
// RUN: rhino-opt %s --rhino-plan-pipeline="topology=dgx-h100:1 stages=2" --verify-diagnostics -o - | filecheck %s

// CHECK: rhino.plan = {{.*}}microbatches = 1 : i64
// expected-warning @+2 {{a pipeline of one micro-batch, in which stages wait for each other: }}
// expected-note @+1 {{run the step as one micro-batch}}
func.func @main(%w: tensor<4x4xf32> {rhino.role = "param"}, %v: tensor<4x4xf32> {rhino.role = "param"}, %x: tensor<8x4xf32> {rhino.role = "batch"}) -> tensor<8x8xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %pairs = stablehlo.dot_general %y, %y, contracting_dims = [1] x [1] : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x8xf32>
  return %pairs : tensor<8x8xf32>
}
